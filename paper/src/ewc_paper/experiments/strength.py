"""Average accuracy after the last task over the strength, one line per kind of pull.

The strength λ says how much old tasks count. The figure shows how much it matters, for the proximal
pull and for the explicit gradient.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, get_args

import numpy as np
from rich.table import Table

from ewc.step_size import How
from ewc_paper.experiments.experiment import Presets, RepeatedExperiment
from ewc_paper.experiments.permuted_mnist import (
    PAPER_TRAINING,
    PermutedMnist,
    accuracy_row,
    average_accuracy,
    make_learner,
    task_ends,
)
from ewc_paper.experiments.view import Layout, Paper, seed_name
from ewc_paper.figures.names import finite_mean, in_order, listed, mean_and_deviation
from ewc_paper.figures.panel import LOOKS, Arrangement, Dots, Figure, Panel, Series, by_seed
from ewc_paper.mnist.config import PermutationConfig
from ewc_paper.options import format_value, option
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Part
from ewc_paper.runs.schema import integer, number, one_of, record


@dataclass(frozen=True, kw_only=True)
class Strength(RepeatedExperiment, PermutedMnist, PermutationConfig):
    """The options, the networks to train and the score."""

    presets: ClassVar[Presets] = {
        "quick": {"tasks": 3, "epochs": 1, "fisher_samples": 2000, "strengths": (1.0, 1e2, 1e4)},
        "laptop": {"tasks": 10, "epochs": 1, "floor": 0.02, "fisher_samples": 5000},
        "paper": {
            **PAPER_TRAINING,
            "tasks": 10,
            "lr": 1e-3,
            "epochs": 20,
            "fisher_samples": 60_000,
        },
    }

    strengths: tuple[float, ...] = option(
        tuple(10.0 ** (half / 2) for half in range(11)), "strengths to try", low=0, common=True
    )
    ways: tuple[str, ...] = option(
        get_args(How), "how the pull is computed", choices=get_args(How), common=True
    )

    def _parts(self) -> Iterator[Part]:
        for how in self.ways:
            for strength in self.strengths:
                for seed in self.all_seeds:
                    config = self.part_config(how=how, strength=strength, seed=seed)
                    yield Part(f"{how}-{format_value(strength)}-seed{seed}", config, make_learner)


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
CLOSE = 1.0  # percentage points from the best accuracy that count as good
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
    arrangement = Arrangement(size=(8.4, 3.4), grid=(1, 2), titled=[1])
    return [Figure("strength", title, caption, [whole, zoomed], arrangement)]


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


def result(run: RunDirectory) -> str:
    """Return the strengths at which each kind of pull comes close to the best accuracy."""
    results = averages(run)
    means = {
        how: {at: finite_mean(seeds.values()) for at, seeds in strengths.items()}
        for how, strengths in results.items()
    }
    known = [
        mean for by_strength in means.values() for mean in by_strength.values() if mean is not None
    ]
    if not known:
        return ""
    phrases = []
    for how, by_strength in means.items():
        good = [
            at
            for at, mean in by_strength.items()
            if mean is not None and mean >= max(known) - CLOSE
        ]
        where = f"for λ from {min(good):g} to {max(good):g}" if good else "for no λ"
        lost = [at for at in results[how] if np.isnan(list(results[how][at].values())).any()]
        diverges = f" (it diverges from {min(lost):g} on)" if lost else ""
        phrases.append(f"the {how} pull {where}{diverges}")
    tasks = run.config()["tasks"]
    return (
        f"After {tasks} tasks the best average test accuracy is {max(known):.1f} %; within "
        f"{CLOSE:g} point of it is {listed(phrases)}."
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
            mean_and_deviation([*pull[strength].values()]) if strength in pull else ""
            for pull in results.values()
        ]
        table.add_row(f"{strength:g}", *cells)
    return table
