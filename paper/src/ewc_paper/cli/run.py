"""`ewc run NAME`: an experiment from its options to its page; how and where parts are run."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ewc_paper.cli.parser import DEFAULT_PRESET, Running, given_options
from ewc_paper.cli.show import show_run
from ewc_paper.errors import Interrupted, RunError
from ewc_paper.options import check_options, flag, format_value
from ewc_paper.terminal import complain, printable, system_error

if TYPE_CHECKING:
    from ewc_paper.experiments.experiment import Experiment
    from ewc_paper.runs.directory import RunDirectory
    from ewc_paper.runs.engine import Engine, Part


def run_experiment(options: argparse.Namespace) -> int:
    """Run an experiment to its end and show it; options are checked before anything is written."""
    from ewc_paper.page.report import write_report

    try:
        running = running_options(options)
        run, config = _plan(options)
        try_out(run.path, config.parts(), running, tensorboard=options.tensorboard)
        run.start(config.to_dict(), resume=options.resume)
    except RunError as error:
        complain(str(error))
        return 2
    except OSError as error:
        complain(system_error(error))
        return 2
    try:
        run_to_the_end(run, config, running, tensorboard=options.tensorboard)
    except Interrupted:
        print(f"interrupted; go on with: ewc run {config.name} --out {run.path} --resume")
        return 130
    show_run(run)
    print(f"page: {printable(str(write_report(run.path)))}")
    return 0


def _plan(options: argparse.Namespace) -> "tuple[RunDirectory, Experiment]":
    """Where a run is written and what it does: as asked, or as the run there was started."""
    from ewc_paper.runs.directory import RunDirectory

    experiment: type[Experiment] = options.experiment
    changes = given_options(options, experiment)
    run = RunDirectory(place(options))
    if options.resume and (run.path / "config.json").is_file():
        return run, _resumed(run, experiment, options.preset, changes)
    names = {file.name for file in run.path.iterdir()} if run.path.is_dir() else set()
    killed_at_its_start = names == {"config.new"}
    if "sweep.json" in names:
        raise RunError(
            f"{run.path} holds a sweep: continue it with ewc sweep {experiment.name} --out "
            f"{run.path} --resume, or choose another --out"
        )
    if options.resume and names and not killed_at_its_start:
        raise RunError(f"{run.path} is not empty and holds no run: choose another --out")
    if options.resume and options.out and not killed_at_its_start:
        raise RunError(f"{run.path} holds no run to resume: leave out --resume to start one there")
    return run, experiment.preset(options.preset or DEFAULT_PRESET, **changes)


def place(options: argparse.Namespace, prefix: str = "") -> Path:
    """The directory of a run or a sweep: --out, or one that is named after preset and seed."""
    if options.out is not None and not options.out.strip():
        raise RunError("--out must name a directory, got an empty string")
    experiment: type[Experiment] = options.experiment
    preset = options.preset or DEFAULT_PRESET
    seed = {"seed": 0, **experiment.presets[preset], **given_options(options, experiment)}["seed"]
    return Path(options.out or Path("runs") / experiment.name / f"{prefix}{preset}-{seed}")


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


def _is_address(text: str) -> bool:
    match = re.fullmatch(r"[\w.\[\]:-]+:(\d{1,5})", text)
    return text == "auto" or (match is not None and 1 <= int(match[1]) <= 65_535)


def running_options(options: argparse.Namespace) -> Running:
    """How to run, as given on the command line; refuses what does not fit."""
    given = given_options(options, Running)
    check_options(Running, given)
    running = Running(**given)
    if running.address is not None and not _is_address(running.address):
        raise RunError(
            f"--address must be HOST:PORT, with a port from 1 to 65535, or auto; got "
            f"{running.address}"
        )
    if running.engine == "local" and (running.address or running.gpus is not None):
        raise RunError("--address and --gpus are for a cluster: add --engine ray")
    if running.engine == "ray" and running.workers is not None:
        raise RunError("--workers is for this machine: a cluster runs one network per CPU")
    return running


def other_options(
    config: "Experiment", preset: str | None, changes: Mapping[str, Any], but: Sequence[str] = ()
) -> list[str]:
    """Options as given that differ from those that a run was started with, with both values.

    Args:
        config: what the run was started with.
        preset: the preset given now, if any.
        changes: the options given now.
        but: options that may differ.
    """
    given = dict(changes)
    if preset is not None:
        chosen = type(config)(**config.presets[preset])
        given = {field.name: getattr(chosen, field.name) for field in fields(config)} | given
    return [
        f"{flag(name)} {format_value(getattr(config, name))}, not {format_value(value)}"
        for name, value in given.items()
        if value != getattr(config, name) and name not in but
    ]


def make_engine(running: Running) -> "Engine":
    """The engine that was asked for."""
    if running.engine == "ray":
        from ewc_paper.runs.ray_engine import RayEngine

        return RayEngine(running.address, gpus=running.gpus)
    from ewc_paper.runs.engine import LocalEngine

    return LocalEngine(running.workers)


def try_out(
    path: Path, parts: "Sequence[Part]", running: Running, *, tensorboard: bool = False
) -> None:
    """Find out what is missing before anything is written: disk space, an extra, data, memory."""
    from ewc_paper.cli.progress import check_installed
    from ewc_paper.runs.engine import check_disk_space

    if tensorboard:
        check_installed()
    if running.engine == "ray":
        from ewc_paper.runs.ray_engine import connect

        connect(running.address)
    else:
        from ewc_paper.runs.engine import default_workers

        check_disk_space(path, parts, running.workers or default_workers())
    try:
        parts[0].make(parts[0].config)  # a learner, dropped at once
    except (ValueError, FileNotFoundError, ImportError, RuntimeError, MemoryError) as error:
        said = str(error).partition("\n")[0]
        option = said.partition(" ")[0]  # a function names its argument as the option is called
        if option in parts[0].config:
            said = flag(option) + said.removeprefix(option)
        raise RunError(said) from error


def run_to_the_end(
    run: "RunDirectory", config: "Experiment", running: Running, *, tensorboard: bool
) -> None:
    """Run all parts to their ends and show how far they are."""
    from ewc_paper.cli.progress import follow
    from ewc_paper.runs.checksums import seal, share_sums
    from ewc_paper.runs.engine import run_parts

    parts, engine = config.parts(), make_engine(running)
    reports = run_parts(run, parts, engine=engine, checkpoint_seconds=running.checkpoint_seconds)
    with run.locked():
        share_sums(run.path)
        follow(reports, [part.name for part in parts], run.path, config, tensorboard=tensorboard)
        seal(run.path)
