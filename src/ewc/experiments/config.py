"""Configs: a dataclass an experiment, whose fields are its command-line options, help included."""

from dataclasses import Field, asdict, dataclass, field, fields
from typing import Any, ClassVar, Self

from ewc.runs.engine import Part
from ewc.runs.errors import RunError

Presets = dict[str, dict[str, Any]]  # by preset: the options that differ from the defaults


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A field with its help and the values that fit; a tuple takes several values."""
    metadata = {"help": help, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Config:
    """What all experiments have: a name, presets, and the parts to run."""

    name: ClassVar[str]
    presets: ClassVar[Presets]

    seed: int = option(0, "where all randomness comes from", low=0)

    @classmethod
    def preset(cls, preset: str, **changes: Any) -> Self:
        """The options of a preset, some of them changed; refuses what does not fit."""
        config = cls(**{**cls.presets[preset], **changes})
        config.check()
        return config

    def check(self) -> None:
        for one in fields(self):
            _check(one, getattr(self, one.name))

    def to_dict(self) -> dict[str, Any]:
        return {"experiment": self.name, **asdict(self)}

    def parts(self) -> list[Part]:
        raise NotImplementedError


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check(one: Field[Any], value: Any) -> None:
    low, high, choices = (one.metadata[key] for key in ("low", "high", "choices"))
    values = value if isinstance(value, tuple) else (value,)
    if not values:
        raise RunError(f"{flag(one.name)} needs at least one value")
    for each in values:
        if choices is not None and each not in choices:
            raise RunError(f"{flag(one.name)} must be one of {', '.join(choices)}, got {each}")
        if low is not None and each is not None and not each >= low:
            raise RunError(f"{flag(one.name)} must be at least {low:g}, got {each}")
        if high is not None and each is not None and not each <= high:
            raise RunError(f"{flag(one.name)} must be at most {high:g}, got {each}")
