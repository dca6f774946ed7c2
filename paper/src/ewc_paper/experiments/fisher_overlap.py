"""Figure 3C: whether two tasks rely on the same weights, layer by layer.

The figure shows the overlap of two tasks' Fishers by depth, one line per size of permuted square.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from rich.table import Table

from ewc.fisher import fisher_diagonal
from ewc.fisher.overlap import fisher_overlap_by_layer
from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Presets, RepeatedExperiment
from ewc_paper.experiments.permuted_mnist import (
    PAPER_TRAINING,
    PermutedMnist,
    accuracy_row,
    make_tasks,
)
from ewc_paper.experiments.view import Layout, Paper, StoredConfig, seed_name
from ewc_paper.figures.names import mean_and_deviation, percent
from ewc_paper.figures.panel import SOLID, Arrangement, Figure, Look, Panel, Series
from ewc_paper.mnist.config import PullConfig, TrainingConfig
from ewc_paper.mnist.data import SIDE
from ewc_paper.mnist.learner import PermutedMnistLearner
from ewc_paper.options import option
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Part
from ewc_paper.runs.schema import Check, integer, list_of, number, record

DEEP = {"tasks": 2, "layers": 6, "width": 100, "strength": 100.0}


@dataclass(frozen=True, kw_only=True)
class FisherOverlap(RepeatedExperiment, PermutedMnist, PullConfig):
    """The options, the networks to train and the score."""

    presets: ClassVar[Presets] = {
        "quick": {**DEEP, "lr": 0.03, "epochs": 3, "fisher_samples": 2000},
        "laptop": {**DEEP, "lr": 0.03, "epochs": 20, "seeds": 3},
        "paper": {**DEEP, **PAPER_TRAINING, "lr": 1e-3, "epochs": 100, "fisher_samples": 60_000},
    }

    squares: tuple[int, ...] = option(
        (8, 26), "sides of the permuted squares", low=1, high=SIDE, common=True
    )

    def check(self) -> None:
        super().check()
        if self.tasks < 2:
            raise RunError(f"--tasks must be at least 2, got {self.tasks}")

    def _parts(self) -> Iterator[Part]:
        for square in self.squares:
            for seed in self.all_seeds:
                config = self.part_config(square=square, seed=seed)
                yield Part(f"square{square}-seed{seed}", config, make_overlap_learner)


class OverlapLearner(PermutedMnistLearner):
    """Learns its tasks, then compares their Fishers at the weights that solve them all, if any."""

    compared = False

    def run(self) -> Iterator[dict[str, Any] | None]:
        yield from super().run()
        if self.diverged or self.compared:
            return
        fishers = [
            fisher_diagonal(self.model, self.fisher_batches(task), kind="exact")
            for task in range(self.config.tasks)
        ]
        overlaps = [
            list(fisher_overlap_by_layer(first, second).values())
            for index, first in enumerate(fishers)
            for second in fishers[index + 1 :]
        ]
        pairs = len(overlaps)
        self.compared = True  # before the row: a checkpoint that has it must not add it again
        yield {"overlap": [sum(layer) / pairs for layer in zip(*overlaps, strict=True)]}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "compared": self.compared}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.compared = state.get("compared", False)  # states of older versions do not say it


def make_overlap_learner(config: dict[str, Any]) -> OverlapLearner:
    return OverlapLearner(make_tasks(config), TrainingConfig(**config["recipe"]))


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
    sides = sorted({part.config()["square"] for part in run.parts()})
    return list(run.config().get("squares", sides))


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
    arrangement = Arrangement(legend={"loc": "lower right"})
    return [Figure("fisher-overlap", title, caption, [panel], arrangement)]


def _line(square: int, results: Overlaps) -> Series:
    rank = sorted(results).index(square)
    gray = round(255 * 0.6 * (1 - rank / max(1, len(results) - 1)))  # the largest square is black
    look = Look(f"#{gray:02x}{gray:02x}{gray:02x}", SOLID, MARKERS[rank % len(MARKERS)])
    layers = len(next(iter(results[square].values())))
    label = f"{square}×{square} pixels permuted"
    return Series(label, look, range(1, layers + 1), results[square], "all")


def result(run: RunDirectory) -> str:
    """Return the overlap in the first layer and in the last, for each square."""
    sentences = []
    for square, seeds in overlaps(run).items():
        first, last = ([100 * layers[at] for layers in seeds.values()] for at in (0, -1))
        sentences.append(
            f"{percent(first)} in the first layer and {percent(last)} in the last if "
            f"{square}×{square} pixels are permuted"
        )
    return f"Overlap of the Fishers of two tasks: {'; '.join(sentences)}." if sentences else ""


def table(run: RunDirectory) -> Table:
    """The overlap in each layer, one column per square."""
    results = overlaps(run)
    table = Table("layer", title="Fisher overlap of the tasks in %, by permuted square")
    for square in results:
        table.add_column(f"{square}×{square}", justify="right")
    depth = max((len(layers) for seeds in results.values() for layers in seeds.values()), default=0)
    for layer in range(depth):
        cells = [
            mean_and_deviation([100 * layers[layer] for layers in seeds.values()])
            for seeds in results.values()
        ]
        table.add_row(str(layer + 1), *cells)
    return table
