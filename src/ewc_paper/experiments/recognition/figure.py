"""Which context every step was taken for, game by game, and how often that was right."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from ewc_paper.figures.names import game_name
from ewc_paper.figures.seeds import mean_and_spread
from ewc_paper.figures.style import axes, save
from ewc_paper.runs.directory import Row, RunDirectory

LABELS = {"observed": "at every step", "decided": "at the ends of windows"}


class Outcome(NamedTuple):
    """How well contexts and games go together over a run."""

    right: float  # fraction of steps in a context that belongs to the game being played
    contexts: int
    delay: float  # agent steps from a switch to the first right one, on average over the switches


def outcome(rows: Sequence[Row], labels: str) -> Outcome:
    """A context belongs to the game that it was mostly taken for."""
    taken: dict[int, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for context, steps in row[labels]:
            taken[context][row["game"]] += steps
    owner = {context: games.most_common(1)[0][0] for context, games in taken.items()}
    right = sum(games[owner[context]] for context, games in taken.items())
    switches = rows[1:]  # before the first segment there is nothing to switch from
    delays = [
        _delay(row[labels], [owner[c] == row["game"] for c, _ in row[labels]]) for row in switches
    ]
    return Outcome(
        right / sum(games.total() for games in taken.values()),
        len(taken),
        float(np.mean(delays)) if delays else 0.0,
    )


def _delay(runs: Sequence[Sequence[int]], right: Sequence[bool]) -> int:
    """Steps before the first run that is right; all of them if none is."""
    first = right.index(True) if True in right else len(runs)
    return sum(steps for _, steps in runs[:first])


def draw(run: RunDirectory) -> list[Path]:
    """Draw the first seed: the context over the steps, on bands colored by the game."""
    rows = run.parts()[0].rows() if run.parts() else []
    games = run.config()["games"]
    palette = plt.colormaps["tab10" if len(games) <= 10 else "tab20"]
    colors = {game: palette(number) for number, game in enumerate(games)}
    ax = axes(9.0, 3.6)
    edges, contexts = [0], []
    for row in rows:
        start = edges[-1]
        ax.axvspan(start, start + row["steps"], color=colors[row["game"]], alpha=0.55, linewidth=0)
        for context, steps in row["observed"]:
            contexts.append(context)
            edges.append(edges[-1] + steps)
    ax.stairs(contexts, edges, baseline=None, color="black", linewidth=0.9)
    ax.set_xlim(0, edges[-1] or 1)
    ax.set_xlabel("agent steps")
    ax.set_ylabel("context recognised")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.legend(
        handles=[
            Patch(color=color, alpha=0.55, label=game_name(game)) for game, color in colors.items()
        ],
        title="game being played",
        loc="outside right upper",
        alignment="left",
        frameon=False,
        fontsize=8,
    )
    return [save(ax, run.figures / "recognition.png")]


def table(run: RunDirectory) -> Table:
    """The mean over seeds of how well the games were told apart."""
    table = Table(
        *(
            "task taken",
            "steps right, %",
            "contexts",
            "contexts a game",
            "delay, steps",
            "ms a step",
        ),
        title="the game recognised from its frames",
    )
    seeds = [rows for part in run.parts() if (rows := part.rows())]
    if not seeds:
        return table
    milliseconds = mean_and_spread([float(np.mean([r["milliseconds"] for r in s])) for s in seeds])
    for labels, name in LABELS.items():
        outcomes = [outcome(rows, labels) for rows in seeds]
        games = [len({row["game"] for row in rows}) for rows in seeds]
        table.add_row(
            name,
            mean_and_spread([100 * one.right for one in outcomes]),
            mean_and_spread([one.contexts for one in outcomes]),
            mean_and_spread([one.contexts / n for one, n in zip(outcomes, games, strict=True)]),
            mean_and_spread([one.delay for one in outcomes]),
            milliseconds,
        )
    return table
