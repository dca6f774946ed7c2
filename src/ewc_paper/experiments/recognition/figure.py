"""Which context the recognizer reported at every step, game by game, and how often it was right."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.table import Table

from ewc_paper.experiments.context_match import ContextUse, match_contexts
from ewc_paper.experiments.view import Layout, StoredConfig
from ewc_paper.figures.game_colors import add_game_legend, game_colors
from ewc_paper.figures.seeds import mean_and_deviation
from ewc_paper.figures.style import axes, save, use_short_numbers, use_whole_numbers
from ewc_paper.runs.directory import MetricsRow, RunDirectory
from ewc_paper.runs.schema import Check, integer, list_of, number, one_of, record, short_text

MAX_GAMES = 1000


def _row(run: StoredConfig, part: StoredConfig) -> Check:
    contexts = list_of(list_of(integer(), 2, 2), 1)
    return record(
        game=one_of(run["games"]),
        steps=integer(1),
        observed=contexts,
        decided=contexts,
        milliseconds=number(0),
    )


LAYOUT = Layout(_row, config=record(games=list_of(short_text, 1, MAX_GAMES)))

# By field of a row that holds contexts: when the recognizer's answer is taken.
WHEN_TAKEN = {"observed": "at every step", "decided": "at the end of each window"}
BAND_OPACITY = 0.55


class Summary(NamedTuple):
    """How well the recognizer told the games apart."""

    correct: float  # fraction of steps in a context that belongs to the game being played
    contexts: int
    delay: float  # agent steps from a switch to the first correct one, mean over the switches


def summarize(rows: Sequence[MetricsRow], field: str) -> Summary:
    """Summarize the segments of one seed; `field` is one of WHEN_TAKEN."""
    uses = [
        ContextUse(context, row["game"], steps) for row in rows for context, steps in row[field]
    ]
    match = match_contexts(uses)
    assert match is not None, "a segment has at least one step"
    delays = [
        _delay(row[field], {c for c, game in match.game_of.items() if game == row["game"]})
        for row in rows[1:]  # the first segment does not follow a switch
    ]
    return Summary(match.correct, len(match.game_of), float(np.mean(delays)) if delays else 0.0)


def _delay(runs: Sequence[Sequence[int]], correct: set[int]) -> int:
    """Count the steps before the first correct context; all of them if there is none."""
    delay = 0
    for context, steps in runs:
        if context in correct:
            break
        delay += steps
    return delay


def draw(run: RunDirectory) -> list[Path]:
    """Draw the contexts of the first seed over the steps, on bands colored by the game."""
    rows = run.parts()[0].rows() if run.parts() else []
    colors = game_colors(run.config()["games"])
    ax = axes(9.0, 3.6)
    edges, contexts = [0], []
    for row in rows:
        start, end = edges[-1], edges[-1] + row["steps"]
        ax.axvspan(start, end, color=colors[row["game"]], alpha=BAND_OPACITY, linewidth=0)
        for context, steps in row["observed"]:
            contexts.append(context)
            edges.append(edges[-1] + steps)
    ax.stairs(contexts, edges, baseline=None, color="black", linewidth=0.9)
    ax.set_xlim(0, edges[-1] or 1)
    ax.set_xlabel("agent steps")
    ax.set_ylabel("recognized context")
    use_short_numbers(ax)
    use_whole_numbers(ax.yaxis)
    add_game_legend(ax, colors, BAND_OPACITY)
    return [save(ax, run.figures / "recognition.png")]


def table(run: RunDirectory) -> Table:
    """How well the games were told apart, as means over seeds."""
    table = Table(
        "context taken",
        "correct steps, %",
        "contexts",
        "contexts per game",
        "delay after a switch, steps",
        "ms per step",
        title="games recognized from their frames",
    )
    seeds = [rows for part in run.parts() if (rows := part.rows())]
    if not seeds:
        return table
    milliseconds = [float(np.mean([row["milliseconds"] for row in rows])) for rows in seeds]
    games = [len({row["game"] for row in rows}) for rows in seeds]
    for field, when in WHEN_TAKEN.items():
        found = [summarize(rows, field) for rows in seeds]
        table.add_row(
            when,
            mean_and_deviation([100 * one.correct for one in found]),
            mean_and_deviation([one.contexts for one in found]),
            mean_and_deviation([one.contexts / n for one, n in zip(found, games, strict=True)]),
            mean_and_deviation([one.delay for one in found]),
            mean_and_deviation(milliseconds),
        )
    return table
