"""Which context the recogniser took each step for, and how often it was right."""

from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
from matplotlib.patches import Patch

from ewc_paper.experiments.games.curves import STEPS
from ewc_paper.experiments.games.data import Network
from ewc_paper.figures.names import game_name
from ewc_paper.figures.style import axes, save


class Recognition(NamedTuple):
    """How well contexts and games go together over all training."""

    right: float  # fraction of steps in a context that belongs to the game being played
    contexts: int


def recognition(network: Network) -> Recognition | None:
    """A context belongs to the game that it was mostly taken for; None before any training."""
    taken: dict[str, Counter[str]] = defaultdict(Counter)
    for row in network.training:
        for context, steps in row["recognized"].items():
            taken[context][row["game"]] += steps
    if not taken:
        return None
    right = sum(max(games.values()) for games in taken.values())
    return Recognition(right / sum(games.total() for games in taken.values()), len(taken))


def draw_recognition(network: Network, file: Path) -> Path:
    """A row a context, colored by the game being played; as high as its share of the steps."""
    palette = plt.colormaps["tab10" if len(network.games) <= 10 else "tab20"]
    colors = {game: palette(number) for number, game in enumerate(network.games)}
    contexts = max((int(c) for row in network.training for c in row["recognized"]), default=0) + 1
    ax = axes(7.4, max(2.0, 0.8 + 0.2 * len(colors), 1.0 + 0.3 * contexts))
    start = 0
    for row in network.training:
        steps = sum(row["recognized"].values())
        for context, taken in row["recognized"].items():
            height = max(0.08, 0.8 * taken / steps)  # a single step must still be seen
            look = {"height": height, "color": colors[row["game"]], "linewidth": 0}
            ax.barh(int(context), row["step"] - start, left=start, **look)
        start = row["step"]
    ax.set_yticks(range(contexts))
    ax.set_ylim(contexts - 0.5, -0.5)
    ax.set_xlim(0, len(network.schedule) * network.settings["segment_steps"])
    ax.xaxis.set_major_formatter(STEPS)
    ax.set_xlabel("agent steps")
    ax.set_ylabel("context recognised")
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.legend(
        handles=[Patch(color=color, label=game_name(game)) for game, color in colors.items()],
        title="game being played",
        loc="outside right upper",
        alignment="left",
        frameon=False,
        fontsize=8,
    )
    return save(ax, file)
