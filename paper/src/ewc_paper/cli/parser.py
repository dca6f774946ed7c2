"""From dataclasses of options to the command line: one option per field, in named groups.

`--help` shows the options that are marked as common, `--help-all` shows all of them.
"""

import argparse
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from typing import TYPE_CHECKING, Any, NoReturn

from ewc_paper.experiments import SUMMARIES
from ewc_paper.options import KINDS, flag, format_value, groups, option, title, value_type
from ewc_paper.terminal import LONGEST, did_you_mean, printable

if TYPE_CHECKING:
    from ewc_paper.experiments.experiment import Experiment

DEFAULT_PRESET = "quick"


@dataclass(frozen=True)
class Running:
    """How an experiment is run, which does not change its results."""

    engine: str = option(
        "local", "where: this machine, or a Ray cluster", choices=("local", "ray"), common=True
    )
    workers: int | None = option(
        None,
        "processes of one thread each on this machine; as many as cores and memory allow if not "
        "given",
        low=1,
        high=1024,
        common=True,
    )
    address: str | None = option(
        None, "address of the Ray cluster; a new one on this machine if not given"
    )
    gpus: float | None = option(
        None,
        "GPUs per network on a Ray cluster, such as 0.25; shared evenly if not given",
        low=0,
        high=64,
    )
    checkpoint_seconds: float = option(30.0, "time between checkpoints", low=0, high=86_400)


@dataclass(frozen=True)
class Sweeping:
    """The sweep. What is tried, and how often."""

    trials: int | None = option(
        None,
        "random combinations; all combinations of lists if not given",
        low=1,
        high=10_000,
        common=True,
    )
    seeds: int = option(
        1, "seeds of every trial, counted from --seed", low=1, high=1000, common=True
    )
    halving: float | None = option(
        None,
        "stop hopeless trials: at 1/N² and 1/N of the work, one of N goes on",
        low=1.5,
        high=100,
        common=True,
    )
    best_seeds: int = option(
        0,
        "run the best trials again, with this many seeds that chose nothing",
        low=0,
        high=1000,
        common=True,
    )


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, where argparse would print all options before it.

    An option is written in full: one that an experiment does not have must not be taken for another
    that begins alike.
    """

    def __init__(self, **given: Any) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(**{"formatter_class": formatter, **given}, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        text = printable(message)[:LONGEST]
        self.exit(2, f"{self.prog}: {text} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown options here, where those that there are can be suggested."""
        namespace, unknown = super().parse_known_args(args, namespace)
        for word in unknown:
            name = word.partition("=")[0]
            if name.startswith("-"):
                self.error(f"there is no option {name}{did_you_mean(name, self._visible())}")
            self.error(f"{word} was not expected")
        return namespace, unknown

    def _visible(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            if action.type not in (int, float):
                raise
            kind = KINDS[action.type]
            raise argparse.ArgumentError(action, f"expected {kind}, got {arg_string}") from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if action.metavar == "COMMAND" and value in SUMMARIES:
            raise argparse.ArgumentError(action, f"did you mean ewc run {value}?")
        known = f"; choose from {', '.join(map(str, action.choices))}"
        said = did_you_mean(str(value), action.choices) or known
        raise argparse.ArgumentError(action, f"there is no {value}{said}")


def path_text(text: str) -> str:
    """The type of an argument that is a path: an empty one would be taken for this directory."""
    if not text.strip():
        raise argparse.ArgumentTypeError("expected a path, got an empty string")
    return text


def examples(*commands: str) -> str:
    """The end of a help text: commands as they may be given."""
    return "\n".join(["examples:", *(f"  {command}" for command in commands)])


def add_options(
    parser: argparse.ArgumentParser,
    experiment: "type[Experiment]",
    arguments: Sequence[str],
    *,
    sweep: bool = False,
) -> None:
    """Add what `ewc run`, or `ewc sweep`, takes for an experiment.

    Args:
        parser: the parser of `ewc run NAME`.
        experiment: the experiment of that name.
        arguments: what is parsed; `--help-all` among them shows all options.
        sweep: whether it is the parser of `ewc sweep NAME`, which has seeds of its own.
    """
    everything = "--help-all" in arguments
    parser.usage = "%(prog)s [options]"
    parser.add_argument("--help-all", action="help", help="show all options and exit")
    if sweep:
        _add_sweep_options(parser, everything)
    _add_run_options(parser, experiment, everything, sweep)
    headings = _by_heading(experiment)
    if sweep:
        headings = {
            heading: [field for field in options if field.name != "seeds"]
            for heading, options in headings.items()
        }
    if not everything:
        options = [field for group in headings.values() for field in group]
        headings = {"The options that are changed most often": options}
    for heading, options in headings.items():
        group = parser.add_argument_group(heading)
        for field in options:
            _add_option(group, field, _defaults(field, experiment), everything)
    hidden = sum(not _is_common(field) for field in (*fields(experiment), *fields(Running)))
    more = f"{hidden} more options: {parser.prog} --help-all\n\n"
    parser.epilog = (more if hidden and not everything else "") + _examples(experiment, sweep)


def _examples(experiment: "type[Experiment]", sweep: bool) -> str:
    largest = list(experiment.presets)[-1]
    if sweep:
        return examples(
            f"ewc sweep {experiment.name} --over lr=log:1e-3..0.3 --trials 20 --workers 2",
            f"ewc sweep {experiment.name} --over lr=0.01,0.1 --seeds 2 --out runs/my-sweep",
            f"ewc sweep {experiment.name} --out runs/my-sweep --resume",
        )
    return examples(
        f"ewc run {experiment.name}",
        f"ewc run {experiment.name} --preset {largest} --seed 1 --out runs/mine",
        f"ewc run {experiment.name} --out runs/mine --resume",
    )


def _add_sweep_options(parser: argparse.ArgumentParser, everything: bool) -> None:
    group = parser.add_argument_group(title(Sweeping))
    group.add_argument(
        "--over",
        nargs="+",
        action="extend",
        metavar="FIELD=SPEC",
        help="what to go over: lr=0.01,0.1 is a list, lr=0.01..0.1 a range (of whole numbers for "
        "an option that is one), lr=log:1e-5..1e-3 a range on a log scale, methods=ewc+sgd,ewc a "
        "list for an option with several values",
    )
    for field in fields(Sweeping):
        _add_option(group, field, f"default: {format_value(field.default)}", everything)


def _add_run_options(
    parser: argparse.ArgumentParser, experiment: "type[Experiment]", everything: bool, sweep: bool
) -> None:
    parser.add_argument(
        "--preset", choices=experiment.presets, help=f"scale (default: {DEFAULT_PRESET})"
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help=f"directory (default: runs/NAME/{'sweep-' if sweep else ''}PRESET-SEED)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run in that directory, with the options that it was started with; "
        "in the default directory, start one if there is none"
        + ("; --trials, --seeds and --best-seeds may grow" if sweep else ""),
    )
    for field in fields(Running):
        _add_option(parser, field, f"default: {format_value(field.default)}", everything)
    if not sweep:
        parser.add_argument(
            "--tensorboard", action="store_true", help="also write TensorBoard events"
        )


def _by_heading(experiment: "type[Experiment]") -> dict[str, list[Field[Any]]]:
    """The options of an experiment by heading, its own first."""
    from ewc_paper.experiments.experiment import Experiment  # needs torch

    by_heading: dict[str, list[Field[Any]]] = {}
    for group, options in groups(experiment).items():
        heading = "The experiment" if issubclass(group, Experiment) else title(group)
        by_heading[heading] = by_heading.get(heading, []) + options
    return by_heading


def _defaults(field: Field[Any], experiment: "type[Experiment]") -> str:
    """The default of an option, by preset where they differ."""
    values = {
        preset: format_value(chosen.get(field.name, field.default))
        for preset, chosen in experiment.presets.items()
    }
    if len(set(values.values())) == 1:
        return f"default: {values[DEFAULT_PRESET]}"
    return ", ".join(f"{preset}: {value}" for preset, value in values.items())


def _add_option(group: Any, field: Field[Any], default: str, everything: bool) -> None:
    shown = f"{field.metadata['help']} ({default})".replace("%", "%%")
    group.add_argument(
        flag(field.name),
        default=argparse.SUPPRESS,
        help=shown if everything or _is_common(field) else argparse.SUPPRESS,
        **_reading(field),
    )


def _is_common(field: Field[Any]) -> bool:
    return bool(field.metadata.get("common"))


def _reading(field: Field[Any]) -> dict[str, Any]:
    """How argparse reads an option: a switch, one value or several."""
    if isinstance(field.default, bool):
        return {"action": argparse.BooleanOptionalAction}
    kind, choices = value_type(field), field.metadata.get("choices")
    return {
        "type": kind,
        "nargs": "+" if isinstance(field.default, tuple) else None,
        "choices": choices,
        "metavar": None if choices else kind.__name__.upper(),
    }


def given_options(namespace: argparse.Namespace, config: type) -> dict[str, Any]:
    """The options of a dataclass that were given on the command line."""
    return {
        field.name: tuple(value)
        if isinstance(value := vars(namespace)[field.name], list)
        else value
        for field in fields(config)
        if field.name in vars(namespace)
    }
