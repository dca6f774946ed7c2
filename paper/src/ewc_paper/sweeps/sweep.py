"""A sweep: what it goes over, and the directory of ordinary run directories that it is on disk.

sweep.json                  experiment, options, what is gone over, trials, seeds, decisions
trials/0003-seed0/          the run of trial 3 with seed 0
best/0003-ewc-seed1000/     a trial that was chosen, run again with a seed that chose nothing

It goes over fields of an experiment, each with values to list or to draw:

lr=0.01,0.1          a list
lr=0.01..0.1         a range, drawn evenly; whole numbers if the option is one, both ends included
lr=log:1e-5..1e-3    a range, drawn evenly on a log scale
methods=ewc+sgd,ewc  a list for an option with several values: + joins those of one trial

Trial i is drawn from a seed of its own, so that adding trials or seeds changes nothing that exists.
"""

import itertools
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import Field, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ewc_paper.errors import Damaged, RunError
from ewc_paper.experiments import EXPERIMENTS, SUMMARIES
from ewc_paper.experiments.experiment import Experiment
from ewc_paper.experiments.view import check_run
from ewc_paper.options import KINDS, check_options, format_value, value_type
from ewc_paper.runs.checksums import (
    check_sums,
    read_sums,
    sums_of,
    with_checksum,
    without_checksum,
)
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
from ewc_paper.terminal import did_you_mean, shown

NOT_SWEPT = ("seed", "seeds")  # every trial is run with the same seeds
FORMS = "a,b,c for a list, a..b for a range or log:a..b for one on a log scale"


@dataclass(frozen=True)
class Listed:
    """Values that are listed."""

    field: str
    text: str  # as on the command line
    values: tuple[Any, ...]

    def draw(self, random: np.random.Generator) -> Any:
        return self.values[random.integers(len(self.values))]


@dataclass(frozen=True)
class Range:
    """Numbers between two ends."""

    field: str
    text: str
    low: float
    high: float
    log: bool
    whole: bool

    def draw(self, random: np.random.Generator) -> float | int:
        if self.whole and not self.log:
            return int(random.integers(int(self.low), int(self.high) + 1))
        ends = np.log([self.low, self.high]) if self.log else np.array([self.low, self.high])
        number = float(random.uniform(*ends))
        number = min(self.high, max(self.low, math.exp(number) if self.log else number))
        return round(number) if self.whole else number


Spec = Listed | Range


def parse_specs(strings: Sequence[str], experiment: type) -> list[Spec]:
    """Parse all that a sweep goes over; refuses what is no option of the experiment."""
    specs = [parse_spec(text, experiment) for text in strings]
    names = [spec.field for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise RunError(f"--over names {name} twice")
    return specs


def parse_spec(text: str, experiment: type) -> Spec:
    """Parse one `field=spec`, and check that its values fit the option."""
    name, equals, spec = text.partition("=")
    name = name.strip().replace("-", "_")
    options = {field.name: field for field in fields(experiment) if field.name not in NOT_SWEPT}
    if not equals or not spec.strip():
        raise RunError(f"--over must be FIELD=SPEC, got {shown(text)}: write {FORMS}")
    if name in NOT_SWEPT:
        raise RunError(f"--over cannot go over {name}: --seeds N repeats every trial with N seeds")
    if name not in options:
        raise RunError(
            f"--over: there is no option {shown(name)}{did_you_mean(name, options)}; there are "
            f"{', '.join(options)}"
        )
    parsed = _parse(options[name], spec.strip())
    ends = (parsed.low, parsed.high) if isinstance(parsed, Range) else parsed.values
    for value in ends:
        _check(experiment, parsed, value)
    return parsed


def _check(experiment: type, spec: Spec, value: Any) -> None:
    whole = isinstance(spec, Range) and spec.whole
    try:
        check_options(experiment, {spec.field: int(value) if whole else value})
    except RunError as error:
        raise RunError(f"--over {spec.field}={spec.text}: {error}") from None


def _parse(option: Field[Any], text: str) -> Spec:
    if ".." in text:
        return _parse_range(option, text)
    several = isinstance(option.default, tuple)
    values = tuple(
        tuple(_value(option, each) for each in item.split("+")) if several else _value(option, item)
        for item in text.split(",")
    )
    if len(set(values)) < len(values):
        raise RunError(f"--over {option.name}={text}: values must differ")
    return Listed(option.name, text, values)


def _parse_range(option: Field[Any], text: str) -> Range:
    kind = value_type(option)
    log = text.startswith("log:")
    low_text, _, high_text = text.removeprefix("log:").partition("..")
    is_number = kind in (int, float) and not isinstance(option.default, tuple)
    if not is_number:
        raise RunError(f"--over {option.name}={text}: only numbers have ranges, write a list")
    low, high = _value(option, low_text), _value(option, high_text)
    if not low < high:
        raise RunError(f"--over {option.name}={text}: a range must rise, got {low} to {high}")
    if log and low <= 0:
        raise RunError(f"--over {option.name}={text}: a log scale begins above 0, got {low}")
    return Range(option.name, text, low, high, log, whole=kind is int)


def _value(option: Field[Any], text: str) -> Any:
    text = text.strip()
    if isinstance(option.default, bool):
        if text not in ("on", "off"):
            raise RunError(f"--over {option.name}: a switch is on or off, got {shown(text)}")
        return text == "on"
    kind = value_type(option)
    try:
        return kind(text)
    except ValueError:
        raise RunError(
            f"--over {option.name}: expected {KINDS[kind]}, got {shown(text)}; write {FORMS}"
        ) from None


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
    return ", ".join(f"{name} {format_value(value)}" for name, value in values.items())


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
        return os.path.lexists(self.path / FILE)

    def read(self) -> Plan:
        """Read what was planned, and what was decided since."""
        try:
            file = self.path / FILE
            stored = without_checksum(parse_record(read_bytes(file), str(file)), str(file))
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
        text = json.dumps(with_checksum(json.loads(json.dumps(content))), indent=2)
        replace_file(self.path / FILE, f"{text}\n".encode())

    def check(self) -> None:
        """Raise RunError if the plan of a finished sweep is not the one that was run."""
        sums = read_sums(self.path) or {}
        check_sums(self.path, {name: sums[name] for name in sums if name == FILE})

    def check_run(self, run: Run) -> None:
        """Raise RunError if a file of a run is damaged, lost, or of another run.

        Its options must be those of the plan, as far as the version that wrote them had them.
        """
        check_sums(run.directory.path, sums_of(run.directory.path) or {})
        if not run.directory.path.exists():
            return
        check_run(run.directory)
        planned = json.loads(json.dumps(run.config.to_dict()))
        for name, value in run.directory.config().items():
            if name in planned and planned[name] != value:
                raise Damaged(
                    f"{run.directory.path} has {name} = {value}, but the sweep has "
                    f"{planned[name]}: it is another run"
                )

    def runs(self, plan: Plan) -> Iterator[Run]:
        """The runs of the search, trial by trial."""
        for trial in range(plan.trials):
            for seed in plan.search_seeds:
                yield Run(trial, self.directory(trial, seed), plan.config(trial, seed))

    def directory(self, trial: int, seed: int) -> RunDirectory:
        return RunDirectory(self.path / "trials" / f"{trial:04d}-seed{seed}")

    def best_runs(self, plan: Plan) -> dict[str, list[Run]]:
        """By what was chosen for: the chosen trial, run with seeds that chose nothing."""
        runs = {}
        for point, trial in self.chosen.items():
            variant, changes = plan.base.alone(point)
            name = "-".join(filter(None, (f"{trial:04d}", variant)))
            runs[point] = [
                Run(
                    trial,
                    RunDirectory(self.path / "best" / f"{name}-seed{seed}"),
                    plan.config(trial, seed, **changes),
                )
                for seed in plan.reporting_seeds
            ]
        return runs

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
