"""Average accuracy after the last task over the strength, one line per kind of pull."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import matplotlib.pyplot as plt
import numpy as np
from rich.table import Table

from ewc.step_size import How
from ewc_paper.experiments.accuracy_rows import accuracy_row, average_accuracy, task_ends
from ewc_paper.experiments.view import Layout, Paper, seed_name
from ewc_paper.figures.names import in_order
from ewc_paper.figures.panel import Dots, Figure, Panel, Series, by_seed
from ewc_paper.figures.plot import plot_panel
from ewc_paper.figures.seeds import mean_and_deviation
from ewc_paper.figures.style import LOOKS, save
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.schema import integer, number, one_of, record

LAYOUT = Layout(
    accuracy_row,
    config=record(tasks=integer(1)),
    part=record(
        recipe=record(tasks=integer(1), how=one_of(get_args(How)), strength=number(0)),
    ),
)

PAPER = Paper(
    "not a figure of the paper",
    'λ "sets how important the old task is compared to the new one". For Atari λ "was optimized by '
    'hyperparameter search", and the appendix gives the value found, 400. For MNIST it gives no '
    "value, and it shows no study of λ.",
    "There is no figure of it.",
)

Averages = dict[str, dict[float, dict[str, float]]]  # by kind of pull, strength and seed
ZOOM = 5.0  # percentage points of accuracy that the second panel shows
DIVERGED_AT = 4.0  # where a network that diverged is marked, near the bottom of the first panel


def averages(run: RunDirectory) -> Averages:
    """Return the average accuracy of the networks that have finished their last task.

    In percent; NaN if the network diverged.
    """
    results: Averages = defaultdict(lambda: defaultdict(dict))
    for part in run.parts():
        recipe = part.config()["recipe"]
        ends = [row for row in task_ends(part.rows()) if row["task"] == recipe["tasks"] - 1]
        if ends:
            of_seeds = results[recipe["how"]][recipe["strength"]]
            of_seeds[seed_name(part)] = average_accuracy(ends[-1])
    by_strength = {how: dict(sorted(strengths.items())) for how, strengths in results.items()}
    return in_order(by_strength, run.config().get("ways", []))


def figures(run: RunDirectory) -> list[Figure]:
    """Return the accuracy over the strength: the whole range, and the best accuracies enlarged."""
    results = averages(run)
    series = [
        Series(how, LOOKS[how], list(strengths), by_seed(strengths), "all")
        for how, strengths in results.items()
    ]
    best = _best(results)
    whole = Panel(
        title="the whole range",
        x_label="strength λ",
        y_label=f"average accuracy after {run.config()['tasks']} tasks, %",
        series=series,
        dots=[dots for how, strengths in results.items() for dots in _diverged(how, strengths)],
        x_log=True,
        y_limits=(0, 102.5),  # a marker at 100 is drawn whole
    )
    zoomed = replace(
        whole,
        title=f"zoomed in: the top {ZOOM:g} percentage points",
        y_label="",
        dots=(),
        y_limits=(best - ZOOM, best + ZOOM / 10),
    )
    title = "Average test accuracy after the last task over the strength λ"
    caption = "One line per way to take the pull; a cross marks a strength at which it diverged."
    return [Figure("strength", title, caption, [whole, zoomed])]


def _best(results: Averages) -> float:
    """Return the highest average accuracy."""
    all_values = [
        value for pull in results.values() for seeds in pull.values() for value in seeds.values()
    ]
    return max((value for value in all_values if np.isfinite(value)), default=100.0)


def _diverged(how: str, strengths: dict[float, dict[str, float]]) -> Iterator[Dots]:
    """Yield a cross at each strength with a network that diverged, if there is any."""
    places = [at for at, seeds in strengths.items() if np.isnan(list(seeds.values())).any()]
    if places:
        look = LOOKS[how]._replace(marker="x")
        yield Dots(f"{how}, diverged", look, places, [DIVERGED_AT] * len(places))


def draw(run: RunDirectory, kind: str = "png") -> list[Path]:
    """Draw the run's figure from its metrics."""
    (figure,) = figures(run)
    _, grid = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    for ax, panel in zip(grid, figure.panels, strict=True):
        plot_panel(ax, panel)
    grid[1].set_title(figure.panels[1].title, fontsize=9, loc="left")
    grid[0].legend(frameon=False)
    return [save(grid[0], run.figures / f"{figure.name}.{kind}")]


def table(run: RunDirectory) -> Table:
    """The average accuracies, one row per strength."""
    results = averages(run)
    table = Table(
        "strength λ", title=f"average test accuracy in % after {run.config()['tasks']} tasks"
    )
    for how in results:
        table.add_column(how, justify="right")
    for strength in sorted({strength for pull in results.values() for strength in pull}):
        cells = [
            mean_and_deviation([*pull[strength].values()]) if strength in pull else ""
            for pull in results.values()
        ]
        table.add_row(f"{strength:g}", *cells)
    return table
