"""One color per game, with a legend next to the axes, for figures of recognized contexts."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.patches import Patch

from ewc_paper.figures.names import game_name


def game_colors(games: Sequence[str]) -> dict[str, str]:
    """Return a color for each game; from the 21st game on, colors are repeated."""
    palette = plt.colormaps["tab10" if len(games) <= 10 else "tab20"]
    return {game: to_hex(palette(number)) for number, game in enumerate(games)}


def add_game_legend(ax: Axes, colors: dict[str, str], opacity: float = 1.0) -> None:
    """Add a legend to the right of the axes.

    Args:
        ax: axes of a figure without other panels.
        colors: what `game_colors` returned.
        opacity: with which the colors were drawn.
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.legend(
        handles=[
            Patch(color=color, alpha=opacity, label=game_name(game))
            for game, color in colors.items()
        ],
        title="game being played",
        loc="outside right upper",
        alignment="left",
        frameon=False,
        fontsize=8,
    )
