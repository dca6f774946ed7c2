"""The command line: `ewc run NAME`, `ewc list`, `ewc figure DIR`."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import ewc
from ewc.experiments import EXPERIMENTS
from ewc.experiments.config import Config, flag
from ewc.report.check import drawable
from ewc.report.progress import display
from ewc.report.tensorboard import Events, NoEvents
from ewc.report.terminal import console, guarded, plain
from ewc.rl.replay import ReplayError
from ewc.runs.directory import RunDirectory
from ewc.runs.engine import Part, Report, run_parts
from ewc.runs.errors import Interrupted, RunError
from ewc.runs.room import check_room

DEFAULT_PRESET = "quick"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments ask; an error that a person can act on is one line and exit code 1."""

    def command() -> int:
        options = build_parser().parse_args(arguments)
        return int(options.do(options))

    return guarded(command, (RunError, ReplayError))


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ewc", description=ewc.__doc__)
    parser.add_argument("--version", action="version", version=f"ewc {ewc.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run an experiment, or go on with one")
    names = run.add_subparsers(required=True, metavar="NAME")
    for name, experiment in EXPERIMENTS.items():
        _add_experiment(names, name, experiment)

    commands.add_parser("list", help="list the experiments").set_defaults(do=list_experiments)

    figure = commands.add_parser("figure", help="redraw the figure of a run, without training")
    figure.add_argument("directory", metavar="DIR", help="the run directory")
    figure.set_defaults(do=lambda options: show(RunDirectory(options.directory)))
    return parser


def _add_experiment(names: Any, name: str, experiment: type[Config]) -> None:
    summary = (experiment.__doc__ or "").strip()
    parser = names.add_parser(name, help=summary, description=summary)
    parser.set_defaults(do=run_experiment, experiment=experiment)
    parser.add_argument(
        "--preset",
        choices=experiment.presets,
        default=DEFAULT_PRESET,
        help="scale (default: %(default)s)",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="run directory (default: runs/NAME/PRESET-SEED)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with the run in that directory"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="processes of one thread each (default: 2)"
    )
    parser.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=30.0,
        help="time between checkpoints (default: 30)",
    )
    parser.add_argument("--tensorboard", action="store_true", help="also write TensorBoard events")
    group = parser.add_argument_group("options of the experiment")
    for one in fields(experiment):
        _add_option(group, one, experiment)


def _add_option(group: Any, one: Field[Any], experiment: type[Config]) -> None:
    values = {
        preset: chosen.get(one.name, one.default) for preset, chosen in experiment.presets.items()
    }
    if len({repr(value) for value in values.values()}) == 1:
        default = f"default: {_plain(one.default)}"
    else:
        default = ", ".join(f"{preset}: {_plain(value)}" for preset, value in values.items())
    group.add_argument(
        flag(one.name),
        default=argparse.SUPPRESS,
        help=f"{one.metadata['help']} ({default})".replace("%", "%%"),
        **_reading(one),
    )


def _reading(one: Field[Any]) -> dict[str, Any]:
    """How argparse reads an option: a switch, one value or several."""
    if isinstance(one.default, bool):
        return {"action": argparse.BooleanOptionalAction}
    kind, choices = _kind_of(one), one.metadata["choices"]
    return {
        "type": kind,
        "nargs": "+" if isinstance(one.default, tuple) else None,
        "choices": choices,
        "metavar": None if choices else kind.__name__.upper(),
    }


def _kind_of(one: Field[Any]) -> type:
    if one.default is None:
        return next(kind for kind in (int, float, str) if kind.__name__ in str(one.type))
    return type(one.default[0] if isinstance(one.default, tuple) else one.default)


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_plain, value))
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def run_experiment(options: argparse.Namespace) -> int:
    """Run an experiment to its end and show it; options are checked before anything is written."""
    given = vars(options)
    names = {one.name for one in fields(options.experiment)}
    changes = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in given.items()
        if name in names
    }
    config: Config = options.experiment.preset(options.preset, **changes)
    if options.workers < 1:
        raise RunError(f"--workers must be at least 1, got {options.workers}")
    default = Path("runs") / config.name / f"{options.preset}-{config.seed}"
    parts = config.parts()
    run = RunDirectory(options.out or default)
    check_room(run.path, parts, options.workers)
    _try_out(parts[0])
    run.start(config.to_dict(), resume=options.resume)
    events = Events(run.path / "tensorboard") if options.tensorboard else NoEvents()
    terminal = console()
    try:
        with run.locked(), display([part.name for part in parts], terminal) as shown:

            def tell(report: Report) -> None:
                shown(report)
                events(report)

            run_parts(
                run,
                parts,
                workers=min(options.workers, len(parts)),
                checkpoint_seconds=options.checkpoint_seconds,
                show=tell,
            )
    except Interrupted:
        terminal.print(
            f"stopped; go on with the same command and --resume (run directory {run.path})"
        )
        return 130
    return show(run)


def _try_out(part: Part) -> None:
    """Make a learner and drop it: bad data or a missing extra shows before anything is written."""
    try:
        part.make(part.config)
    except (ValueError, FileNotFoundError, ImportError) as error:
        raise RunError(str(error)) from error


def show(run: RunDirectory) -> int:
    """Print the table of a run and draw its figures, once its files are checked."""
    with drawable(run) as view:
        console().print(view.table(run))
        for file in view.draw(run):
            print(f"figure: {plain(str(file))}")
    return 0


def list_experiments(options: argparse.Namespace) -> int:
    for name, experiment in EXPERIMENTS.items():
        print(f"{name:16} {(experiment.__doc__ or '').strip()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
