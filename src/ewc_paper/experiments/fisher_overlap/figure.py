"""Figure 3C: the overlap of two tasks' Fishers by depth, one line per size of permuted square."""

import math
from collections import defaultdict
from pathlib import Path

from matplotlib.colors import to_hex
from rich.table import Table

from ewc_paper.experiments.accuracy_rows import accuracy_row
from ewc_paper.experiments.view import Layout, Paper, StoredConfig, seed_name
from ewc_paper.figures.panel import Figure, Panel, Series
from ewc_paper.figures.plot import plot_panel
from ewc_paper.figures.seeds import mean_and_deviation
from ewc_paper.figures.style import SOLID, Look, axes, save
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.schema import Check, integer, list_of, number, record


def _row(run: StoredConfig, part: StoredConfig) -> Check:
    overlap, accuracies = record(overlap=list_of(number(), 1)), accuracy_row(run, part)
    return lambda row: overlap(row) if "overlap" in row else accuracies(row)


LAYOUT = Layout(_row, part=record(square=integer(1)))

PAPER = Paper(
    "figure 3C",
    "In a network of six layers of 100 units trained on two tasks, the Fishers of two tasks that "
    "differ in a small square of pixels (8×8) overlap throughout. For a large square (26×26) the "
    "overlap is small near the input and grows toward the output, which the tasks share.",
    "Two lines over the six layers: that of the small square is high everywhere, that of the large "
    "square begins low and rises toward the output.",
)

MARKERS = "osD^v"
Overlaps = dict[int, dict[str, list[float]]]  # by side of the square and seed: one per layer


def overlaps(run: RunDirectory) -> Overlaps:
    """Return the overlaps of each square in the order of the options; NaN if a network diverged."""
    results: Overlaps = defaultdict(dict)
    for part in run.parts():
        config = part.config()
        for row in part.rows():
            if "overlap" in row:
                results[config["square"]][seed_name(part)] = row["overlap"]
            elif row.get("diverged"):
                diverged = [math.nan] * (config["recipe"]["layers"] + 1)
                results[config["square"]][seed_name(part)] = diverged
    return {square: results[square] for square in _squares(run) if results[square]}


def _squares(run: RunDirectory) -> list[int]:
    """Sides of the squares in the order of the options."""
    found = sorted({part.config()["square"] for part in run.parts()})
    return list(run.config().get("squares", found))


def figures(run: RunDirectory) -> list[Figure]:
    """Return the overlap in each layer, one line per square."""
    results = overlaps(run)
    panel = Panel(
        "layer, from the input to the output",
        "Fisher overlap",
        series=[_line(square, results) for square in results],
        y_limits=(0, 1.03),  # a marker at 1 is drawn whole
    )
    title = "Overlap of the Fishers of two tasks, layer by layer"
    caption = "1: both tasks use the same weights; 0: they share none."
    return [Figure("fisher-overlap", title, caption, [panel])]


def _line(square: int, results: Overlaps) -> Series:
    rank = sorted(results).index(square)
    gray = to_hex(str(0.6 * (1 - rank / max(1, len(results) - 1))))  # the largest square is black
    look = Look(gray, SOLID, MARKERS[rank % len(MARKERS)])
    layers = len(next(iter(results[square].values())))
    label = f"{square}×{square} pixels permuted"
    return Series(label, look, range(1, layers + 1), results[square], "all")


def draw(run: RunDirectory, kind: str = "png") -> list[Path]:
    """Draw the run's figure from its metrics."""
    (figure,) = figures(run)
    ax = plot_panel(axes(), figure.panels[0])
    ax.legend(frameon=False, loc="lower right")
    return [save(ax, run.figures / f"{figure.name}.{kind}")]


def table(run: RunDirectory) -> Table:
    """The overlap in each layer, one column per square."""
    results = overlaps(run)
    table = Table("layer", title="Fisher overlap of the tasks in %, by permuted square")
    for square in results:
        table.add_column(f"{square}×{square}", justify="right")
    depth = max((len(one) for seeds in results.values() for one in seeds.values()), default=0)
    for layer in range(depth):
        cells = [
            mean_and_deviation([100 * one[layer] for one in seeds.values()])
            for seeds in results.values()
        ]
        table.add_row(str(layer + 1), *cells)
    return table
