"""Which context the recognizer reported at every step, game by game, and how often it was right."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.table import Table

from ewc_paper.experiments.playing import ContextUse, match_contexts
from ewc_paper.experiments.view import Layout, Paper, StoredConfig, seed_name
from ewc_paper.figures.names import game_name, mean_and_deviation
from ewc_paper.figures.panel import BLACK, SOLID, Box, Figure, Look, Panel, Series
from ewc_paper.figures.plot import (
    add_game_legend,
    axes,
    game_colors,
    plot_panel,
    save,
    use_short_numbers,
    use_whole_numbers,
)
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
OPACITY = 0.55  # of the bands
LINE = Look(BLACK, SOLID, "", 0.9)

PAPER = Paper(
    "not a figure of the paper",
    "The task is the hidden state of a Markov model over generative models of single frames, and "
    "new models are added as they are needed. The paper shows no figure of the recognition itself, "
    "only that an agent that recognizes the game scores nearly as well as one that is told.",
    "There is no figure of it.",
)


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


def figures(run: RunDirectory) -> list[Figure]:
    """Return the contexts over the steps, on bands colored by the game, one panel per seed."""
    panels = [_panel(seed_name(part), part.rows(), run.config()["games"]) for part in run.parts()]
    title = "The context that the recognizer reports at every step"
    caption = "Colors are the games being played; each game should have a context of its own."
    return [Figure("recognition", title, caption, panels)] if panels else []


def _panel(title: str, rows: Sequence[MetricsRow], games: Sequence[str]) -> Panel:
    colors = game_colors(games)
    ends = list(accumulate(row["steps"] for row in rows))
    bands = [
        Box(game_name(row["game"]), colors[row["game"]], (end - row["steps"], end), None, OPACITY)
        for row, end in zip(rows, ends, strict=True)
    ]
    runs = [span for row in rows for span in row["observed"]]
    edges = [0, *accumulate(steps for _, steps in runs)]
    contexts = [context for context, _ in runs]
    line = {"": [*contexts, *contexts[-1:]]}
    return Panel(
        "agent steps",
        "recognized context",
        title=title,
        series=[Series("context", LINE, edges[: len(line[""])], line, steps=True)],
        boxes=bands,
        x_limits=(0, edges[-1] or 1),
    )


def draw(run: RunDirectory, kind: str = "png") -> list[Path]:
    """Draw the contexts of the first seed."""
    shown = figures(run)
    ax = axes(9.0, 3.6)
    plot_panel(ax, shown[0].panels[0] if shown else Panel("agent steps", "recognized context"))
    use_short_numbers(ax)
    use_whole_numbers(ax.yaxis)
    add_game_legend(ax, game_colors(run.config()["games"]), OPACITY)
    return [save(ax, run.figures / f"recognition.{kind}")]


def result(run: RunDirectory) -> str:
    """Return how often the game is recognized, in how many contexts, and how fast."""
    seeds = [rows for part in run.parts() if (rows := part.rows())]
    if not seeds:
        return ""
    summaries = [summarize(rows, "observed") for rows in seeds]
    correct, contexts, delay = (float(np.mean(column)) for column in zip(*summaries, strict=True))
    games = float(np.mean([len({row["game"] for row in rows}) for rows in seeds]))
    return (
        f"The game is recognized in {100 * correct:.1f} % of steps, {delay:.0f} steps after a "
        f"switch, with {contexts:.1f} contexts for {games:g} games."
    )


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
        summaries = [summarize(rows, field) for rows in seeds]
        table.add_row(
            when,
            mean_and_deviation([100 * summary.correct for summary in summaries]),
            mean_and_deviation([summary.contexts for summary in summaries]),
            mean_and_deviation(
                [summary.contexts / n for summary, n in zip(summaries, games, strict=True)]
            ),
            mean_and_deviation([summary.delay for summary in summaries]),
            mean_and_deviation(milliseconds),
        )
    return table
