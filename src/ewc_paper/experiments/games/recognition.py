"""Which context the recognizer reported for each step of training, and how often it was right."""

from pathlib import Path

from ewc_paper.experiments.context_match import ContextMatch, ContextUse, match_contexts
from ewc_paper.experiments.games.data import Network
from ewc_paper.figures.game_colors import add_game_legend, game_colors
from ewc_paper.figures.style import axes, save, use_short_numbers


def recognition(network: Network) -> ContextMatch | None:
    """Match the contexts of a network with the games; None before any training."""
    return match_contexts(
        ContextUse(int(context), row["game"], steps)
        for row in network.training
        for context, steps in row["recognized"].items()
    )


def draw_recognition(network: Network, file: Path) -> Path:
    """Draw one row per context, colored by the game being played.

    The height of a bar is the context's share of the steps.
    """
    colors = game_colors(network.games)
    contexts = max((int(c) for row in network.training for c in row["recognized"]), default=0) + 1
    ax = axes(7.4, max(2.0, 0.8 + 0.2 * len(colors), 1.0 + 0.3 * contexts))
    start = 0
    for row in network.training:
        steps = sum(row["recognized"].values())
        for context, taken in row["recognized"].items():
            height = max(0.08, 0.8 * taken / steps)  # even a single step is visible
            style = {"height": height, "color": colors[row["game"]], "linewidth": 0}
            ax.barh(int(context), row["step"] - start, left=start, **style)
        start = row["step"]
    ax.set_yticks(range(contexts))
    ax.set_ylim(contexts - 0.5, -0.5)
    ax.set_xlim(0, len(network.schedule) * network.settings["segment_steps"])
    use_short_numbers(ax)
    ax.set_xlabel("agent steps")
    ax.set_ylabel("recognized context")
    add_game_legend(ax, colors)
    return save(ax, file)
