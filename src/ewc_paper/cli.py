"""The command line: `ewc run`, `sweep`, `list`, `status`, `figure`, `report` and `watch`.

What needs torch is imported where it is used: help takes no time.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ewc_paper
from ewc_paper.commands import status, sweep
from ewc_paper.commands.running import (
    other_options,
    run_to_the_end,
    running_options,
    try_out,
)
from ewc_paper.errors import Interrupted, RunError
from ewc_paper.experiments import EXPERIMENTS, SUMMARIES
from ewc_paper.page.commands import add_page_commands
from ewc_paper.parser import DEFAULT_PRESET, Parser, add_options, given_options
from ewc_paper.terminal import complain, console, guarded, printable

if TYPE_CHECKING:
    from ewc_paper.experiments.experiment import Experiment
    from ewc_paper.runs.directory import RunDirectory

DESCRIPTION = """Run the experiments on elastic weight consolidation, go on with a run that was
stopped, and draw its figures. `ewc list` says what there is, `ewc run NAME --help` the options."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments ask; an error that a person can act on is one line.

    The exit code is 2 for options that do not fit, when nothing was written, 130 for a run that was
    interrupted, and 1 for other errors.
    """
    given = sys.argv[1:] if arguments is None else arguments

    def command() -> int:
        options = build_parser(given).parse_args(given)
        return int(options.do(options))

    return guarded(command, (RunError,))


def build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of these arguments: it has the options of the experiments that they name."""
    parser = Parser(prog="ewc", description=DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"ewc {ewc_paper.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="run an experiment, or go on with one")
    names = run.add_subparsers(required=True, metavar="NAME")
    for name, summary in SUMMARIES.items():
        experiment = names.add_parser(name, help=summary, description=summary)
        if name in arguments:
            experiment.set_defaults(do=run_experiment, experiment=EXPERIMENTS[name])
            add_options(experiment, EXPERIMENTS[name], arguments)

    commands.add_parser("list", help="list the experiments").set_defaults(do=list_experiments)

    figure = commands.add_parser("figure", help="redraw the figure of a run, without training")
    figure.add_argument("directory", metavar="DIR", help="the run directory, or that of a sweep")
    figure.add_argument(
        "--format",
        choices=("png", "svg", "pdf"),
        default="png",
        help="of the figures (default: png)",
    )
    figure.set_defaults(do=draw_figures)

    sweep.register(commands, arguments)
    status.register(commands)
    add_page_commands(commands)
    return parser


def run_experiment(options: argparse.Namespace) -> int:
    """Run an experiment to its end and show it; options are checked before anything is written."""
    from ewc_paper.page.report import write_report

    try:
        running = running_options(options)
        run, config = _plan(options)
        parts = config.parts()
        try_out(run.path, parts, running, tensorboard=options.tensorboard)
    except RunError as error:
        complain(str(error))
        return 2
    run.start(config.to_dict(), resume=options.resume)
    try:
        run_to_the_end(run, parts, running, tensorboard=options.tensorboard)
    except Interrupted:
        print(f"interrupted; go on with: ewc run {config.name} --out {run.path} --resume")
        return 130
    show(run)
    print(f"page: {printable(str(write_report(run.path)))}")
    return 0


def _plan(options: argparse.Namespace) -> "tuple[RunDirectory, Experiment]":
    """Where a run is written and what it does: as asked, or as the run there was started."""
    from ewc_paper.runs.directory import RunDirectory

    experiment: type[Experiment] = options.experiment
    changes = given_options(options, experiment)
    preset = options.preset or DEFAULT_PRESET
    if options.out == "":
        raise RunError("--out must name a directory, got an empty text")
    seed = {"seed": 0, **experiment.presets[preset], **changes}["seed"]
    run = RunDirectory(options.out or Path("runs") / experiment.name / f"{preset}-{seed}")
    if options.resume and (run.path / "config.json").is_file():
        return run, _resumed(run, experiment, options.preset, changes)
    found = {file.name for file in run.path.iterdir()} if run.path.is_dir() else set()
    killed_at_its_start = found == {"config.new"}
    if options.resume and options.out and not killed_at_its_start:
        raise RunError(f"{run.path} holds no run to resume: leave out --resume to start one there")
    if options.resume and found and not killed_at_its_start:
        raise RunError(f"{run.path} is not empty and holds no run: choose another --out")
    return run, experiment.preset(preset, **changes)


def _resumed(
    run: "RunDirectory", experiment: "type[Experiment]", preset: str | None, changes: dict[str, Any]
) -> "Experiment":
    """The options that the run was started with; refuses if others are given."""
    stored = run.config()
    if stored.get("experiment") != experiment.name:
        raise RunError(
            f"{run.path} holds a run of {stored.get('experiment')}, not of {experiment.name}"
        )
    try:
        config = experiment.from_dict(stored)
    except RunError as error:
        raise RunError(f"{run.path}/config.json: {error}") from None
    other = other_options(config, preset, changes)
    if other:
        raise RunError(
            f"{run.path} was started with {'; '.join(other)}: "
            "resume with --out and --resume alone, or choose another --out"
        )
    return config


def draw_figures(options: argparse.Namespace) -> int:
    from ewc_paper.runs.directory import RunDirectory

    if sweep.is_sweep(options.directory):
        return sweep.show(options.directory, options.format)
    show(RunDirectory(options.directory), options.format)
    return 0


def show(run: "RunDirectory", kind: str = "png") -> None:
    """Print the table of a run and draw its figures, once its files are checked."""
    from ewc_paper.experiments.check import drawable

    with drawable(run) as view:
        console().print(view.table(run))
        for file in view.draw(run, kind):
            print(f"figure: {printable(str(file))}")


def list_experiments(options: argparse.Namespace) -> int:
    for name, summary in SUMMARIES.items():
        print(f"{name:16} {summary}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
