"""Every game has a color of its own, and the legend shows it."""

from matplotlib.colors import to_rgba

from ewc_paper.figures import style
from ewc_paper.figures.game_colors import add_game_legend, game_colors


def test_up_to_twenty_games_have_different_colors() -> None:
    for count in (2, 10, 11, 20):
        colors = game_colors([str(number) for number in range(count)])
        assert len(set(colors.values())) == count


def test_the_legend_names_the_games_in_their_colors() -> None:
    ax = style.axes()
    colors = game_colors(["CrazyClimber", "Pong"])
    add_game_legend(ax, colors, opacity=0.5)
    (legend,) = ax.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Crazy Climber", "Pong"]
    shown = [patch.get_facecolor() for patch in legend.get_patches()]
    assert shown == [to_rgba(color, alpha=0.5) for color in colors.values()]
    style.plt.close("all")
