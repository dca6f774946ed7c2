"""What `ewc run` and `ewc sweep` share: how and where parts are run."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ewc_paper.errors import RunError
from ewc_paper.options import check_options, flag, plain
from ewc_paper.parser import Running, given_options
from ewc_paper.terminal import console

if TYPE_CHECKING:
    from ewc_paper.experiments.experiment import Experiment
    from ewc_paper.runs.directory import RunDirectory
    from ewc_paper.runs.engine import Engine, Part, Report

ADDRESS = r"auto|[\w.\[\]:-]+:\d{1,5}"


def running_options(options: argparse.Namespace) -> Running:
    """How to run, as given on the command line; refuses what does not fit."""
    given = given_options(options, Running)
    check_options(Running, given)
    running = Running(**given)
    if running.address is not None and not re.fullmatch(ADDRESS, running.address):
        raise RunError(f"--address must be HOST:PORT or auto, got {running.address!r}")
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
        given = {one.name: getattr(chosen, one.name) for one in fields(config)} | given
    return [
        f"{flag(name)} {plain(getattr(config, name))}, not {plain(value)}"
        for name, value in given.items()
        if value != getattr(config, name) and name not in but
    ]


def make_engine(running: Running) -> "Engine":
    """The engine that was asked for."""
    if running.engine == "ray":
        from ewc_paper.runs.ray_engine import RayEngine

        return RayEngine(running.address, gpus=running.gpus)
    from ewc_paper.runs.local import LocalEngine

    return LocalEngine(running.workers)


def try_out(
    path: Path, parts: "Sequence[Part]", running: Running, *, tensorboard: bool = False
) -> None:
    """Find out what is missing before anything is written: disk space, an extra, data, memory."""
    from ewc_paper.live.tensorboard import check_installed
    from ewc_paper.runs.disk_space import check_disk_space

    if tensorboard:
        check_installed()
    if running.engine == "ray":
        from ewc_paper.runs.ray_engine import connect

        connect(running.address)
    else:
        from ewc_paper.runs.local import default_workers

        check_disk_space(path, parts, running.workers or default_workers())
    try:
        parts[0].make(parts[0].config)  # a learner, dropped at once
    except (ValueError, FileNotFoundError, ImportError, RuntimeError, MemoryError) as error:
        raise RunError(str(error).partition("\n")[0]) from error


def run_to_the_end(
    run: "RunDirectory", parts: "Sequence[Part]", running: Running, *, tensorboard: bool
) -> None:
    """Run all parts to their ends and show how far they are."""
    from ewc_paper.live.progress import display
    from ewc_paper.live.tensorboard import Events, NoEvents
    from ewc_paper.runs.engine import run_parts
    from ewc_paper.runs.progress_file import ProgressFile

    events = Events(run.path / "tensorboard") if tensorboard else NoEvents()
    names = [part.name for part in parts]
    with run.locked(), display(names, console()) as shown, ProgressFile(run.path) as kept:

        def tell(report: "Report") -> None:
            shown(report)
            events(report)
            kept(report)

        run_parts(
            run,
            parts,
            engine=make_engine(running),
            checkpoint_seconds=running.checkpoint_seconds,
            show=tell,
        )
