"""The command line: `ewc run`, `sweep`, `list`, `runs`, `status`, `figure`, `report`, `watch`.

Here are all commands with their arguments, except the options of experiments, which `cli.parser`
makes from their fields. What needs torch is imported where it is used: help takes no time.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import ewc_paper
from ewc_paper.cli import listing, show
from ewc_paper.cli.completion import SHELLS, named_experiments, places, script
from ewc_paper.cli.parser import Parser, add_options, examples, path_text
from ewc_paper.cli.run import run_experiment
from ewc_paper.cli.sweep import run_sweep
from ewc_paper.errors import RunError
from ewc_paper.experiments import EXPERIMENTS, SUMMARIES
from ewc_paper.terminal import guarded

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
    parser = Parser(prog="ewc", description=DESCRIPTION, epilog=EXAMPLES["ewc"])
    parser.add_argument("--version", action="version", version=f"ewc {ewc_paper.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, said: str, do: Callable[[argparse.Namespace], int] | None = None) -> Any:
        command = commands.add_parser(name, help=said, description=said, epilog=EXAMPLES[name])
        if do is not None:
            command.set_defaults(do=do)
        return command

    run = add("run", "run an experiment, or go on with one")
    _add_experiments(run, run_experiment, arguments)

    add("list", "list the experiments with their presets and times", listing.list_experiments)

    runs = add("runs", "list the runs that there are, with state and result", listing.list_runs)
    runs.add_argument(
        "directory",
        metavar="DIR",
        nargs="?",
        default=listing.RUNS,
        type=path_text,
        help=f"where to look (default: {listing.RUNS})",
    )

    figure = add("figure", "redraw the figure of a run, without training", show.show_figures)
    figure.add_argument(
        "directory", metavar="DIR", type=path_text, help="the run directory, or that of a sweep"
    )
    figure.add_argument(
        "--format",
        choices=("png", "svg", "pdf"),
        default="png",
        help="of the figures (default: png)",
    )

    sweep = add("sweep", "run an experiment with many combinations of options")
    _add_experiments(sweep, run_sweep, arguments, sweep=True)

    status = add("status", "say how far a run or a sweep is", show.show_status)
    status.add_argument(
        "directory", metavar="DIR", type=path_text, help="the directory of the run or sweep"
    )

    report = add("report", "write the page of a run, or of several", show.write_page)
    report.add_argument(
        "directories",
        metavar="DIR",
        nargs="+",
        type=path_text,
        help="a run, or a directory of runs",
    )
    report.add_argument(
        "--out",
        metavar="FILE",
        type=path_text,
        help="the page (default: report.html in DIR, or here for several)",
    )

    watch = add("watch", "show the page in a browser while the run goes on", show.watch_page)
    watch.add_argument(
        "directory", metavar="DIR", type=path_text, help="a run, or a directory of runs"
    )
    watch.add_argument(
        "--port", type=int, default=0, metavar="PORT", help="of 127.0.0.1 (default: a free one)"
    )

    completion = add("completion", "print a script that completes in a shell", print_completion)
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    return parser


EXAMPLES = {
    "ewc": examples(
        "ewc list",
        "ewc run learning-curves",
        "ewc watch runs/learning-curves/quick-0",
    ),
    "run": examples(
        "ewc run learning-curves",
        "ewc run many-tasks --preset laptop --workers 2",
        "ewc run many-tasks --out runs/many-tasks/laptop-0 --resume",
    ),
    "list": examples("ewc list"),
    "runs": examples("ewc runs", "ewc runs runs/many-tasks"),
    "figure": examples(
        "ewc figure runs/learning-curves/quick-0",
        "ewc figure runs/learning-curves/quick-0 --format pdf",
    ),
    "sweep": examples(
        "ewc sweep many-tasks --over lr=log:1e-3..0.3 width=100..400 --trials 20",
        "ewc sweep many-tasks --out runs/many-tasks/sweep-quick-0 --resume",
    ),
    "status": examples("ewc status runs/learning-curves/quick-0"),
    "report": examples(
        "ewc report runs/learning-curves/quick-0",
        "ewc report runs/many-tasks runs/strength --out both.html",
    ),
    "watch": examples(
        "ewc watch runs/learning-curves/quick-0",
        "ewc watch runs/learning-curves/quick-0 --port 8000",
    ),
    "completion": examples(
        "ewc completion bash > ~/.local/share/bash-completion/completions/ewc",
        "ewc completion zsh > ~/.zfunc/_ewc",
        "ewc completion fish > ~/.config/fish/completions/ewc.fish",
    ),
}


def print_completion(options: argparse.Namespace) -> int:
    print(script(options.shell, list(places(build_parser(named_experiments())))), end="")
    return 0


def _add_experiments(
    parser: argparse.ArgumentParser,
    do: Callable[[argparse.Namespace], int],
    arguments: Sequence[str],
    *,
    sweep: bool = False,
) -> None:
    """Add one command per experiment; only those that are named get options, which need torch."""
    names = parser.add_subparsers(required=True, metavar="NAME")
    for name, summary in SUMMARIES.items():
        experiment = names.add_parser(name, help=summary, description=summary)
        if name in arguments:
            experiment.set_defaults(do=do, experiment=EXPERIMENTS[name])
            add_options(experiment, EXPERIMENTS[name], arguments, sweep=sweep)
