"""Figure 3C: the overlap of two tasks' Fishers by depth, one line per size of permuted square."""

import math
from collections import defaultdict
from pathlib import Path

from rich.table import Table

from ewc_paper.experiments.accuracy_rows import accuracy_row
from ewc_paper.experiments.view import Layout, StoredConfig
from ewc_paper.figures.seeds import mean_and_deviation, plot_band
from ewc_paper.figures.style import axes, save
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.schema import Check, integer, list_of, number, record


def _row(run: StoredConfig, part: StoredConfig) -> Check:
    overlap, accuracies = record(overlap=list_of(number(), 1)), accuracy_row(run, part)
    return lambda row: overlap(row) if "overlap" in row else accuracies(row)


LAYOUT = Layout(_row, part=record(square=integer(1)))

MARKERS = "osD^v"
Overlaps = dict[int, list[list[float]]]  # by side of the square: one overlap per seed and layer


def overlaps(run: RunDirectory) -> Overlaps:
    """Return the overlaps of each square in the order of the options; NaN if a network diverged."""
    results: Overlaps = defaultdict(list)
    for part in run.parts():
        config = part.config()
        for row in part.rows():
            if "overlap" in row:
                results[config["square"]].append(row["overlap"])
            elif row.get("diverged"):
                results[config["square"]].append([math.nan] * (config["recipe"]["layers"] + 1))
    return {square: results[square] for square in _squares(run) if results[square]}


def _squares(run: RunDirectory) -> list[int]:
    """Sides of the squares in the order of the options."""
    found = sorted({part.config()["square"] for part in run.parts()})
    return list(run.config().get("squares", found))


def draw(run: RunDirectory) -> list[Path]:
    """Draw the run's figure from its metrics."""
    ax = axes()
    results = overlaps(run)
    for square, values in results.items():
        rank = sorted(results).index(square)
        gray = str(0.6 * (1 - rank / max(1, len(results) - 1)))  # the largest square is black
        layers = list(range(1, len(values[0]) + 1))
        plot_band(
            ax,
            layers,
            values,
            color=gray,
            label=f"{square}×{square} pixels permuted",
            marker=MARKERS[rank % len(MARKERS)],
            markersize=5,
        )
    ax.set_ylim(0, 1.03)  # a marker at 1 is drawn whole
    ax.set_xlabel("layer, from the input to the output")
    ax.set_ylabel("Fisher overlap")
    ax.legend(frameon=False, loc="lower right")
    return [save(ax, run.figures / "fisher-overlap.png")]


def table(run: RunDirectory) -> Table:
    """The overlap in each layer, one column per square."""
    results = overlaps(run)
    table = Table("layer", title="Fisher overlap of the tasks in %, by permuted square")
    for square in results:
        table.add_column(f"{square}×{square}", justify="right")
    depth = max((len(values[0]) for values in results.values()), default=0)
    for layer in range(depth):
        cells = [
            mean_and_deviation([100 * one[layer] for one in values]) for values in results.values()
        ]
        table.add_row(str(layer + 1), *cells)
    return table
