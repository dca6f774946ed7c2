"""Figure 3B: the average accuracy over all tasks so far as tasks are added, one line per method.

The paper shows the best of 50 random combinations for each method and number of tasks. That is a
sweep, which chooses a trial for each of them by validation accuracy; its figure shows these trials,
run again with seeds that chose nothing.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from rich.table import Table

from ewc_paper.experiments.experiment import Presets, RepeatedExperiment
from ewc_paper.experiments.permuted_mnist import (
    PAPER_TRAINING,
    MethodComparison,
    accuracy_row,
    average_accuracy,
    choosing_accuracy,
    make_learner,
    task_ends,
)
from ewc_paper.experiments.view import Layout, Paper, seed_name
from ewc_paper.figures.names import (
    METHOD_LABELS,
    SENTENCE_LABELS,
    in_order,
    listed,
    mean_and_deviation,
    percent,
)
from ewc_paper.figures.panel import LOOKS, Arrangement, Figure, Level, Panel, Series, by_seed
from ewc_paper.mnist.config import METHODS
from ewc_paper.options import option
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Part
from ewc_paper.runs.schema import integer, one_of, optional, record

SINGLE = "single"  # the dashed line: plain training on one task alone
VALIDATED = {"validation_samples": 5000}  # dropout stops early


@dataclass(frozen=True, kw_only=True)
class ManyTasks(RepeatedExperiment, MethodComparison):
    """The options, the networks to train and the score."""

    presets: ClassVar[Presets] = {
        "quick": {
            **VALIDATED,
            "tasks": 5,
            "epochs": 1,
            "dropout_epochs": 1,
            "fisher_samples": 5000,
        },
        "laptop": {
            **VALIDATED,
            "tasks": 10,
            "width": 1000,
            "epochs": 2,
            "strength": 50.0,
            "floor": 0.02,
            "seeds": 3,
        },
        "hundred": {
            "methods": ("kronecker", "ewc", "l2", "sgd", SINGLE),
            "tasks": 100,
            "epochs": 1,
            "train_samples": 20_000,
            "batch_size": 128,
            "schedule": "linear",
            "average": 0.0,
            "fisher_samples": 2000,
            "segments": 1,
            "measure_every": 10,
            "strength": 30.0,
            "l2_strength": 0.2,
        },
        "paper": {
            **VALIDATED,
            **PAPER_TRAINING,
            "methods": ("ewc", "dropout", SINGLE),
            "tasks": 10,
            "epochs": 100,
            "dropout_epochs": 100,
            "fisher_samples": 55_000,
            "lr": 1e-3,
            "dropout_lr": 1e-3,
            "width": 2000,
            "strength": 100.0,
        },
    }

    methods: tuple[str, ...] = option(
        ("ewc", "dropout", "sgd", SINGLE),
        "methods to compare",
        choices=(*METHODS, SINGLE),
        common=True,
    )
    dropout_epochs: int = option(
        5, "epochs per task for dropout, cut short by early stopping", low=1, high=100_000
    )
    dropout_lr: float = option(0.01, "learning rate for dropout", low=1e-12, high=1e3)

    def check(self) -> None:
        super().check()
        if "dropout" in self.methods:
            self.check_validation()

    def _parts(self) -> Iterator[Part]:
        for method in self.methods:
            for seed in self.all_seeds:
                changes: dict[str, Any] = {"method": method, "seed": seed}
                changes["strength"] = self.strength_of(method)
                if method == "dropout":
                    changes |= {"epochs": self.dropout_epochs, "lr": self.dropout_lr}
                if method == SINGLE:
                    changes |= {"method": "sgd", "tasks": 1}
                config = {"label": method, **self.part_config(**changes)}
                # 0 was the number of a combination, when a run could try several.
                yield Part(f"{method}-0-seed{seed}", config, make_learner)

    def points(self, run: RunDirectory) -> dict[str, float]:
        """The accuracy by which a trial is chosen for each method and number of tasks."""
        accuracies = {
            (self.methods.index(part.config()["label"]), row["task"] + 1): choosing_accuracy(row)
            for part in run.parts()
            for row in task_ends(part.rows())
        }
        return {
            f"{self.methods[method]}-{count}": accuracies[method, count]
            for method, count in sorted(accuracies)
        }

    def alone(self, point: str) -> tuple[str, dict[str, Any]]:
        method = point.rpartition("-")[0]
        return method, {"methods": (method,)}


LAYOUT = Layout(
    accuracy_row,
    config=record(search=optional(integer(0, 0))),  # runs of an older version could search
    part=record(label=one_of(METHOD_LABELS)),
)

PAPER = Paper(
    "figure 3B",
    'SGD with dropout "does not scale to more tasks"; EWC learns many in sequence "with only '
    'modest growth in the error rates". The paper shows this as a figure, without numbers in the '
    "text.",
    "The fraction correct over all tasks so far, for 1 to 10 tasks. SGD with dropout falls with "
    "every task; EWC stays close to the dashed line of a network that learns one task alone.",
)

# By method, number of tasks and seed: the average in percent; NaN if the network diverged.
Averages = dict[str, dict[int, dict[str, float]]]


def averages(run: RunDirectory) -> Averages:
    """Return the average test accuracy of every seed."""
    results: Averages = defaultdict(lambda: defaultdict(dict))
    for part in run.parts():
        label, seed = part.config()["label"], seed_name(part)
        for row in task_ends(part.rows()):
            results[label][row["task"] + 1][seed] = average_accuracy(row)
    by_count = {method: dict(sorted(counts.items())) for method, counts in results.items()}
    return in_order(by_count, run.config().get("methods", []))


def best_averages(chosen: Mapping[str, Sequence[RunDirectory]]) -> Averages:
    """Return the averages of the runs that were chosen for each method and number of tasks.

    Args:
        chosen: by method and number of tasks, as `ManyTasks.points` names them: the runs.
    """
    results: Averages = defaultdict(dict)
    for point, runs in chosen.items():
        method, _, count = point.rpartition("-")
        values: dict[str, float] = {}
        for run in runs:
            values |= averages(run).get(method, {}).get(int(count), {})
        if values:
            results[method][int(count)] = values
    return {method: dict(sorted(counts.items())) for method, counts in results.items()}


def figures(run: RunDirectory) -> list[Figure]:
    """Return the average accuracy as tasks are added, one line per method."""
    return [_figure(averages(run))]


def best_figures(chosen: Mapping[str, Sequence[RunDirectory]]) -> list[Figure]:
    """Return the same for the runs that a sweep has chosen."""
    return [_figure(best_averages(chosen))]


def _figure(results: Averages) -> Figure:
    series, levels = [], []
    for method, counts in results.items():
        diverged = any(math.isnan(value) for seeds in counts.values() for value in seeds.values())
        label = METHOD_LABELS[method] + (" (some diverged)" if diverged else "")
        if method == "single":
            mean = float(np.nanmean(list(counts[1].values())))
            levels.append(Level(label, LOOKS[method], mean))
        else:
            series.append(Series(label, LOOKS[method], list(counts), by_seed(counts), "all"))
    panel = Panel(
        "number of tasks",
        "average accuracy over all tasks, %",
        series=series,
        levels=levels,
        x_whole=True,
    )
    title = "Average test accuracy over all tasks so far, as tasks are added"
    caption = "Higher is better; a flat line forgets nothing."
    # Above the lines: which corner they leave free differs between runs.
    legend = {"ncols": 3, "loc": "lower left", "bbox_to_anchor": (0, 1)}
    return Figure("many-tasks", title, caption, [panel], Arrangement(legend=legend))


def result(run: RunDirectory) -> str:
    """Return the average of each method after the most tasks that all have learned."""
    return _result(averages(run))


def best_result(chosen: Mapping[str, Sequence[RunDirectory]]) -> str:
    """Return the same for the runs that a sweep has chosen."""
    return _result(best_averages(chosen))


def _result(results: Averages) -> str:
    learned = [max(counts) for method, counts in results.items() if method != SINGLE and counts]
    if not learned:
        return ""
    count = min(learned)
    shares = [
        f"{SENTENCE_LABELS[method]} {percent(counts[count].values())}"
        for method, counts in results.items()
        if method != SINGLE and count in counts
    ]
    alone = results.get(SINGLE, {}).get(1, {})
    limit = f"; a network that learns one task alone has {percent(alone.values())}" * bool(alone)
    return f"Average test accuracy over {count} tasks learned in turn: {listed(shares)}{limit}."


def table(run: RunDirectory) -> Table:
    """The average accuracies, for about ten numbers of tasks at most."""
    return _table(averages(run))


def best_table(chosen: Mapping[str, Sequence[RunDirectory]]) -> Table:
    """The average accuracies of the runs that were chosen."""
    return _table(best_averages(chosen))


def _table(results: Averages) -> Table:
    counts = sorted({count for method in results.values() for count in method})
    every = max(1, len(counts) // 10)
    table = Table("tasks", title="average test accuracy in % over all tasks so far")
    for method in results:
        table.add_column(METHOD_LABELS[method], justify="right")
    for count in [count for count in counts if count == 1 or count % every == 0]:
        cells = [
            mean_and_deviation([*m[count].values()]) if count in m else "" for m in results.values()
        ]
        table.add_row(str(count), *cells)
    return table
