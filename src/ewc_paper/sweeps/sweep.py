"""A sweep on disk: a directory of ordinary run directories, and `sweep.json`, which plans them.

sweep.json                  experiment, options, what is gone over, trials, seeds, decisions
trials/0003-seed0/          the run of trial 3 with seed 0
best/0003-ewc-seed1000/     a trial that was chosen, run again with a seed that chose nothing

Trial i is drawn from a seed of its own, so that adding trials or seeds changes nothing that exists.
"""

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ewc_paper.errors import Damaged, RunError
from ewc_paper.experiments import EXPERIMENTS, SUMMARIES
from ewc_paper.experiments.experiment import Experiment
from ewc_paper.options import plain
from ewc_paper.runs.directory import RunDirectory, versions
from ewc_paper.runs.files import parse_record, read_bytes, replace_file
from ewc_paper.runs.schema import (
    SchemaError,
    anything,
    flag,
    integer,
    list_of,
    mapping,
    number,
    one_of,
    optional,
    record,
    short_text,
)
from ewc_paper.seeding import derive_seed
from ewc_paper.sweeps.spec import Listed, Spec, parse_specs

FILE = "sweep.json"
MAX_TRIALS = 10_000
MAX_SEEDS = 1000  # seeds of the search; those that report come after them

Values = dict[str, Any]  # by field: the values of a trial

_CHECK = record(
    experiment=one_of(SUMMARIES),
    options=mapping(short_text, anything),
    over=list_of(short_text, 1),
    trials=integer(1, MAX_TRIALS),
    seeds=integer(1, MAX_SEEDS),
    grid=flag,
    halving=optional(number(1)),
    best_seeds=integer(0, MAX_SEEDS),
    goes_on=mapping(short_text, mapping(short_text, flag)),
    chosen=mapping(short_text, integer(0, MAX_TRIALS - 1)),
)


@dataclass(frozen=True)
class Plan:
    """What a sweep runs.

    Args:
        base: the options that are the same in all trials, with the first seed.
        over: what is gone over, as on the command line.
        trials: how many combinations.
        seeds: how many seeds each is run with.
        grid: all combinations of lists, instead of random ones.
        halving: keep one trial of this many at each rung; None keeps all.
        best_seeds: how many new seeds the best trials are run with afterwards.
    """

    base: Experiment
    over: tuple[str, ...]
    trials: int
    seeds: int
    grid: bool
    halving: float | None = None
    best_seeds: int = 0

    @property
    def specs(self) -> list[Spec]:
        return parse_specs(self.over, type(self.base))

    def values(self, trial: int) -> Values:
        """The values of a trial, from its place in the grid or from its own seed."""
        specs = self.specs
        if self.grid:
            lists = [spec.values for spec in specs if isinstance(spec, Listed)]
            combination = next(itertools.islice(itertools.product(*lists), trial, None))
            return {spec.field: value for spec, value in zip(specs, combination, strict=True)}
        return {spec.field: spec.draw(self._random(trial, spec.field)) for spec in specs}

    def _random(self, trial: int, field: str) -> np.random.Generator:
        return np.random.default_rng(derive_seed(self.base.seed, "trial", trial, field))

    def config(self, trial: int, seed: int, **changes: Any) -> Experiment:
        """The options of a trial's run; refuses what does not fit together."""
        values = self.values(trial)
        given = self.base.to_dict() | values | {"seed": seed, "seeds": 1} | changes
        try:
            return type(self.base).from_dict(given)
        except RunError as error:
            raise RunError(f"trial {trial} ({described(values)}): {error}") from None

    @property
    def search_seeds(self) -> range:
        return range(self.base.seed, self.base.seed + self.seeds)

    @property
    def reporting_seeds(self) -> range:
        """Seeds that are never among those of the search, however many are added."""
        return range(self.base.seed + MAX_SEEDS, self.base.seed + MAX_SEEDS + self.best_seeds)


def described(values: Values) -> str:
    """The values of a trial in one line."""
    return ", ".join(f"{name} {plain(value)}" for name, value in values.items())


def grid_size(specs: list[Spec]) -> int | None:
    """How many combinations lists have; None if there is a range."""
    lists = [spec.values for spec in specs if isinstance(spec, Listed)]
    return math.prod(map(len, lists)) if len(lists) == len(specs) else None


@dataclass(frozen=True)
class Run:
    """One run of a sweep: a trial with a seed."""

    trial: int
    directory: RunDirectory
    config: Experiment


class Sweep:
    """Reads and writes one sweep directory.

    Its `goes_on` says, by rung and trial, which trials went on; `chosen`, by what was chosen for,
    the best trial.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.goes_on: dict[str, dict[str, bool]] = {}
        self.chosen: dict[str, int] = {}

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def exists(self) -> bool:
        return (self.path / FILE).is_file()

    def read(self) -> Plan:
        """Read what was planned, and what was decided since."""
        try:
            stored = parse_record(read_bytes(self.path / FILE), str(self.path / FILE))
            _CHECK(stored)
        except SchemaError as error:
            raise Damaged(f"{self.path / FILE} is damaged: {error}") from None
        except (FileNotFoundError, NotADirectoryError):
            raise RunError(f"{self.path} is not a sweep: it has no {FILE}") from None
        self.goes_on, self.chosen = stored["goes_on"], stored["chosen"]
        names = ("trials", "seeds", "grid", "halving", "best_seeds")
        base = EXPERIMENTS[stored["experiment"]].from_dict(stored["options"])
        return Plan(base, tuple(stored["over"]), **{name: stored[name] for name in names})

    def write(self, plan: Plan) -> None:
        """Write what is planned and decided, completely or not at all."""
        content = {
            "experiment": plan.base.name,
            "options": plan.base.to_dict(),
            "over": plan.over,
            "trials": plan.trials,
            "seeds": plan.seeds,
            "grid": plan.grid,
            "halving": plan.halving,
            "best_seeds": plan.best_seeds,
            "goes_on": self.goes_on,
            "chosen": self.chosen,
            "versions": versions(),
        }
        replace_file(self.path / FILE, (json.dumps(content, indent=2) + "\n").encode())

    def runs(self, plan: Plan) -> Iterator[Run]:
        """The runs of the search, trial by trial."""
        for trial in range(plan.trials):
            for seed in plan.search_seeds:
                yield Run(trial, self.directory(trial, seed), plan.config(trial, seed))

    def directory(self, trial: int, seed: int) -> RunDirectory:
        return RunDirectory(self.path / "trials" / f"{trial:04d}-seed{seed}")

    def best_runs(self, plan: Plan) -> dict[str, list[Run]]:
        """By what was chosen for: the chosen trial, run with seeds that chose nothing."""
        found = {}
        for point, trial in self.chosen.items():
            variant, changes = plan.base.alone(point)
            name = "-".join(filter(None, (f"{trial:04d}", variant)))
            found[point] = [
                Run(
                    trial,
                    RunDirectory(self.path / "best" / f"{name}-seed{seed}"),
                    plan.config(trial, seed, **changes),
                )
                for seed in plan.reporting_seeds
            ]
        return found

    def chosen_directories(self, plan: Plan) -> dict[str, list[RunDirectory]]:
        """By what was chosen for: the runs of the chosen trial that have begun."""
        return {
            point: [run.directory for run in runs if run.directory.parts()]
            for point, runs in self.best_runs(plan).items()
        }


def extended(plan: Plan, *, trials: int | None, seeds: int | None, best_seeds: int | None) -> Plan:
    """A plan with more trials or seeds; refuses fewer, and a grid that would be no grid."""
    for name, now, asked in (
        ("trials", plan.trials, trials),
        ("seeds", plan.seeds, seeds),
        ("best-seeds", plan.best_seeds, best_seeds),
    ):
        if asked is not None and asked < now:
            raise RunError(f"--{name} can only grow: the sweep has {now}, got {asked}")
    if plan.grid and trials not in (None, plan.trials):
        raise RunError(f"--trials cannot grow: the sweep is a grid of {plan.trials} combinations")
    return replace(
        plan,
        trials=trials or plan.trials,
        seeds=seeds or plan.seeds,
        best_seeds=plan.best_seeds if best_seeds is None else best_seeds,
    )
