"""What an experiment is: a dataclass whose fields are its command-line options, help included."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import islice
from typing import Any, ClassVar, Self

from ewc_paper.errors import RunError
from ewc_paper.experiments import NAMES
from ewc_paper.options import check_options, option
from ewc_paper.runs.directory import MetricsRow, RunDirectory
from ewc_paper.runs.engine import Part

Presets = dict[str, dict[str, Any]]  # by preset: the options that differ from the defaults
MAX_PARTS = 10_000  # the largest preset, that of the paper's `games`, has 196


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What all experiments have: a name, presets, options, and the parts to run.

    An experiment inherits the groups of options that it uses, adds its own, and yields its parts
    from `_parts`. Its name is in the table of `ewc_paper.experiments`.
    """

    name: ClassVar[str]
    presets: ClassVar[Presets]
    score_means: ClassVar[str]  # what `score` is, in a few words

    seed: int = option(0, "seed of all random numbers", low=0, high=2**63 - 1, common=True)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__name__ in NAMES:  # groups of experiments have no name
            cls.name = NAMES[cls.__name__]

    @classmethod
    def preset(cls, preset: str, **changes: Any) -> Self:
        """The options of a preset, some of them changed; refuses what does not fit."""
        config = cls._made({**cls.presets[preset], **changes})
        config.check()
        return config

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """The options that `to_dict` gave, back from JSON; refuses what does not fit.

        Keys that are no options, such as those of an older version, are left out.
        """
        config = cls.restored(stored)
        config.check()
        return config

    @classmethod
    def restored(cls, stored: Mapping[str, Any]) -> Self:
        """The options of a run to look at: each must fit by itself, and no other file is read."""
        names = [field.name for field in fields(cls) if field.name in stored]
        values: dict[str, Any] = {name: stored[name] for name in names}
        lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls._made(values | lists)

    @classmethod
    def _made(cls, values: dict[str, Any]) -> Self:
        check_options(cls, values)
        return cls(**values)

    def check(self) -> None:
        """Refuse options that do not fit together."""

    def to_dict(self) -> dict[str, Any]:
        return {"experiment": self.name, **asdict(self)}

    def parts(self) -> list[Part]:
        """The parts to run, each under a name of its own."""
        parts = list(islice(self._parts(), MAX_PARTS + 1))
        if len(parts) > MAX_PARTS:
            raise RunError(
                f"these options make more than {MAX_PARTS:,} networks: choose fewer seeds or values"
            )
        ((name, count),) = Counter(part.name for part in parts).most_common(1)
        if count > 1:
            raise RunError(f"{count} networks would be called {name}: choose values that differ")
        return parts

    def _parts(self) -> Iterator[Part]:
        raise NotImplementedError

    def score(self, run: RunDirectory) -> float | None:
        """The one number by which a sweep compares runs, higher is better; None if there is none.

        It is chosen on validation data where there is some, and also defined for a run that is
        not over, from what was measured so far.
        """
        raise NotImplementedError

    def headline(self, row: MetricsRow) -> str:
        """A row of metrics in a few words, for who watches the run; empty for most rows."""
        return "diverged" if row.get("diverged") else ""

    def is_milestone(self, row: MetricsRow) -> bool:
        """Whether a row ends a piece of work that who watches the run waits for."""
        return False

    def scalars(self, row: MetricsRow) -> dict[str, float]:
        """The numbers of a row that TensorBoard shows."""
        return {name: row[name] for name in ("loss", "score") if row.get(name) is not None}

    def points(self, run: RunDirectory) -> dict[str, float]:
        """What a sweep chooses the best trial for: one trial for all, by the score."""
        score = self.score(run)
        return {} if score is None else {"all": score}

    def alone(self, point: str) -> tuple[str, dict[str, Any]]:
        """What is run again for a point of `points`: a name for it, and the options to change."""
        return "", {}


@dataclass(frozen=True, kw_only=True)
class RepeatedExperiment(Experiment):
    """An experiment that is run with several seeds."""

    seeds: int = option(
        1, "number of seeds, counted from --seed; several give bands", low=1, common=True
    )

    @property
    def all_seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)
