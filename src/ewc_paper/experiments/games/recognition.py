"""Which context the recognizer reported for each step of training, and how often it was right."""

from pathlib import Path

from ewc_paper.experiments.context_match import ContextMatch, ContextUse, match_contexts
from ewc_paper.experiments.games.data import Network
from ewc_paper.figures.game_colors import add_game_legend, game_colors
from ewc_paper.figures.names import game_name
from ewc_paper.figures.panel import Box, Panel
from ewc_paper.figures.plot import plot_panel
from ewc_paper.figures.style import axes, save, use_short_numbers


def recognition(network: Network) -> ContextMatch | None:
    """Match the contexts of a network with the games; None before any training."""
    return match_contexts(
        ContextUse(int(context), row["game"], steps)
        for row in network.training
        for context, steps in row["recognized"].items()
    )


def recognized_in_tests(network: Network) -> float | None:
    """Return the fraction of test steps in a context that belongs to the game being played.

    Only games that had been trained count. None if there are none, or if the run is from before
    this was recorded.
    """
    match = recognition(network)
    uses = [
        (match is not None and match.game_of.get(int(context)) == game, steps)
        for test in network.tests
        for game, contexts in (test.get("recognized") or {}).items()
        if test["steps_in"].get(game, 0)
        for context, steps in contexts.items()
    ]
    total = sum(steps for _, steps in uses)
    return sum(steps for right, steps in uses if right) / total if total else None


def recognition_panel(network: Network) -> Panel:
    """Return one row per context, colored by the game being played.

    The height of a box is the context's share of the steps.
    """
    colors = game_colors(network.games)
    contexts = max((int(c) for row in network.training for c in row["recognized"]), default=0) + 1
    boxes, start = [], 0
    for row in network.training:
        steps = sum(row["recognized"].values())
        for context, taken in row["recognized"].items():
            half = max(0.08, 0.8 * taken / steps) / 2  # even a single step is visible
            y = (int(context) - half, int(context) + half)
            label, color = game_name(row["game"]), colors[row["game"]]
            boxes.append(Box(label, color, (start, row["step"]), y))
        start = row["step"]
    return Panel(
        "agent steps",
        "recognized context",
        boxes=boxes,
        y_names=[str(context) for context in range(contexts)],
        x_limits=(0, len(network.schedule) * network.settings["segment_steps"]),
    )


def draw_recognition(network: Network, file: Path) -> Path:
    """Draw the recognized contexts with a legend of the games."""
    panel, colors = recognition_panel(network), game_colors(network.games)
    height = max(2.0, 0.8 + 0.2 * len(colors), 1.0 + 0.3 * len(panel.y_names))
    ax = plot_panel(axes(7.4, height), panel)
    use_short_numbers(ax)
    add_game_legend(ax, colors)
    return save(ax, file)
