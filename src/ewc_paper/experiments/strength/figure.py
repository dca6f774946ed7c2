"""Average accuracy after the last task over the strength, one line per kind of pull."""

from collections import defaultdict
from pathlib import Path
from typing import get_args

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from rich.table import Table

from ewc.step_size import How
from ewc_paper.experiments.accuracy_rows import accuracy_row, average_accuracy, task_ends
from ewc_paper.experiments.view import Layout
from ewc_paper.figures.names import in_order
from ewc_paper.figures.seeds import mean_and_deviation, plot_band
from ewc_paper.figures.style import LOOKS, marker_style, save, tidy
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.schema import integer, number, one_of, record

LAYOUT = Layout(
    accuracy_row,
    config=record(tasks=integer(1)),
    part=record(
        recipe=record(tasks=integer(1), how=one_of(get_args(How)), strength=number(0)),
    ),
)

# By kind of pull, by strength: one average per seed, in percent; NaN if the network diverged.
Averages = dict[str, dict[float, list[float]]]
ZOOM = 5.0  # percentage points of accuracy that the second panel shows


def averages(run: RunDirectory) -> Averages:
    """Return the average accuracy of the networks that have finished their last task."""
    results: Averages = defaultdict(lambda: defaultdict(list))
    for part in run.parts():
        recipe = part.config()["recipe"]
        ends = [row for row in task_ends(part.rows()) if row["task"] == recipe["tasks"] - 1]
        if ends:
            results[recipe["how"]][recipe["strength"]].append(average_accuracy(ends[-1]))
    by_strength = {how: dict(sorted(strengths.items())) for how, strengths in results.items()}
    return in_order(by_strength, run.config().get("ways", []))


def draw(run: RunDirectory) -> list[Path]:
    """Draw the run's figure from its metrics: the whole range, and the best accuracies enlarged."""
    _, panels = plt.subplots(1, 2, figsize=(8.4, 3.4), layout="constrained")
    results = averages(run)
    for ax in panels:
        for how, strengths in results.items():
            seeds = min(len(values) for values in strengths.values())
            values = [[averages[seed] for averages in strengths.values()] for seed in range(seeds)]
            plot_band(ax, list(strengths), values, label=how, **marker_style(how))
        tidy(ax).set_xscale("log")
        ax.set_xlabel("strength λ")
    panels[0].set_ylim(0, 102.5)  # a marker at 100 is drawn whole
    for how, strengths in results.items():
        _mark_diverged(panels[0], how, strengths)
    panels[0].set_ylabel(f"average accuracy after {run.config()['tasks']} tasks, %")
    panels[0].legend(frameon=False)
    best = _best(results)
    panels[1].set_ylim(best - ZOOM, best + ZOOM / 10)
    panels[1].set_title(f"zoomed in: the top {ZOOM:g} percentage points", fontsize=9, loc="left")
    return [save(panels[0], run.figures / "strength.png")]


def _best(results: Averages) -> float:
    """Return the highest average accuracy."""
    all_values = [
        value for pull in results.values() for values in pull.values() for value in values
    ]
    return max((value for value in all_values if np.isfinite(value)), default=100.0)


def _mark_diverged(ax: Axes, how: str, strengths: dict[float, list[float]]) -> None:
    """Draw a cross near the bottom of the panel at each strength with a network that diverged."""
    diverged = [strength for strength, values in strengths.items() if np.isnan(values).any()]
    if diverged:
        ax.plot(
            diverged,
            [0.04] * len(diverged),
            "x",
            color=LOOKS[how].color,
            label=f"{how}, diverged",
            transform=ax.get_xaxis_transform(),
        )


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
            mean_and_deviation(pull[strength]) if strength in pull else ""
            for pull in results.values()
        ]
        table.add_row(f"{strength:g}", *cells)
    return table
