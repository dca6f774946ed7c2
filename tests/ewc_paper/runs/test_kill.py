"""A run killed at any moment, even in a checkpoint, is resumed and ends the same, bit for bit."""

import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import FLAGS, OPTIONS, InlineEngine, run_through, write_data

from benchmarks.cluster.engines import start_cluster
from ewc_paper.cli import main
from ewc_paper.cli import run as run_command
from ewc_paper.errors import Interrupted
from ewc_paper.experiments.learning_curves import LearningCurves
from ewc_paper.page import report
from ewc_paper.runs import checkpoint, engine
from ewc_paper.runs.checkpoint import load_checkpoint
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Ended, Event, Job, run_job

# A child of fork starts at once, with torch loaded: many kills in a short time.
fork = multiprocessing.get_context("fork")


def train(run: RunDirectory, data: Path, before: Callable[[], None] = lambda: None) -> None:
    (part,) = LearningCurves.preset("quick", **OPTIONS, data=str(data), methods=("ewc",)).parts()
    before()
    run_through(part.make(part.config), run, checkpoint_seconds=0)


def run_dir(path: Path) -> RunDirectory:
    path.mkdir()
    return RunDirectory(path)


def assert_same_end(run: Path, whole: Path) -> None:
    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    ends = [load_checkpoint(path) for path in (run, whole)]
    assert ends[0] is not None
    assert ends[1] is not None
    assert ends[0]["finished"]
    for kind in ("model", "memory"):
        first, second = ends[0]["state"][kind], ends[1]["state"][kind]
        assert first.keys() == second.keys()
        assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Path:
    run = RunDirectory(tmp_path_factory.mktemp("whole"))
    train(run, data)
    return run.path


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path: Path, data: Path, whole: Path) -> None:
    fresh = (run_dir(tmp_path / f"run{number}") for number in itertools.count())
    run, moments, kills = next(fresh), random.Random(0), 0
    while kills < 15:
        child = fork.Process(target=train, args=(run, data))
        child.start()
        child.join(moments.uniform(0.02, 0.25))
        if child.exitcode == 0:  # it came to its end: begin another run
            assert_same_end(run.path, whole)
            run = next(fresh)
            continue
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        kills += 1
    train(run, data)
    assert_same_end(run.path, whole)


class KilledAt:
    """Ends the process at the n-th of the syncs and renames that make checkpoints."""

    def __init__(self, call: int) -> None:
        self.left = call

    def __call__(self) -> None:
        for name in ("fsync", "replace"):
            setattr(checkpoint.os, name, self.counted(getattr(os, name)))

    def counted(self, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments)

        return call


@pytest.mark.parametrize("call", range(1, 16))
def test_killed_in_the_middle_of_a_checkpoint(
    tmp_path: Path, data: Path, whole: Path, call: int
) -> None:
    run = RunDirectory(tmp_path)
    child = fork.Process(target=train, args=(run, data, KilledAt(call)))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    train(run, data)
    assert_same_end(tmp_path, whole)


@pytest.mark.slow
def test_the_command_line_killed_at_random_moments(tmp_path: Path, data: Path, whole: Path) -> None:
    """All of it: the parent is killed, its workers end with it, and --resume continues."""
    run = ["run", "learning-curves", "--data", str(data), "--out", str(tmp_path / "run"), *FLAGS]
    options = ["--methods", "ewc", "--checkpoint-seconds", "0"]
    command = [sys.executable, "-m", "ewc_paper", *run, *options]
    moments = random.Random(1)
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()  # the first report: it is training
        time.sleep(moments.uniform(0, 0.05))
        process.kill()
        process.wait()
        process.stdout.close()
        if "--resume" not in command:
            command.append("--resume")
    subprocess.run(command, check=True, capture_output=True)
    assert_same_end(tmp_path / "run" / "parts" / "ewc", whole)


KILLS = int(os.environ.get("EWC_KILLS", "10"))  # by hand: EWC_KILLS=100, of which a fifth on Ray
TINY = {
    "schematic": ["--samples", "50", "--gradient-steps", "300", "--grid", "5"],
    "learning-curves": [*FLAGS, "--methods", "ewc", "sgd"],
    "many-tasks": [*FLAGS, "--validation-samples", "40", "--methods", "ewc", "dropout"],
    "fisher-overlap": [*FLAGS, "--squares", "8", "26"],
    "strength": [*FLAGS, "--strengths", "1", "100", "--ways", "proximal"],
}


def tiny_run(experiment: str, data: Path, out: Path) -> list[str]:
    own = [] if experiment == "schematic" else ["--data", str(data)]
    options = [*own, "--checkpoint-seconds", "0", "--out", str(out)]
    return ["run", experiment, *TINY[experiment], *options]


class OnePieceEngine:
    """Stops every job after one piece of work."""

    def run(
        self, jobs: Sequence[Job], *, checkpoint_seconds: float
    ) -> Generator[Event, None, None]:
        ended = 0
        for job in jobs:
            stop = itertools.chain([False], itertools.repeat(True)).__next__
            for event in run_job(job, stop=stop, checkpoint_seconds=checkpoint_seconds):
                ended += isinstance(event, Ended)
                yield event
        if ended < len(jobs):
            raise Interrupted


@pytest.mark.parametrize("experiment", TINY)
def test_stopped_after_every_piece_it_ends_as_if_it_were_not(
    experiment: str, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the last row and before the end, which a random kill seldom meets."""
    monkeypatch.setattr(run_command, "show_run", lambda *given: None)
    monkeypatch.setattr(report, "write_report", lambda directory: directory)
    monkeypatch.setattr(run_command, "make_engine", lambda running: InlineEngine())
    assert main(tiny_run(experiment, data, tmp_path / "whole")) == 0
    monkeypatch.setattr(run_command, "make_engine", lambda running: OnePieceEngine())
    command = tiny_run(experiment, data, tmp_path / "run")
    codes = [main(command)]
    while codes[-1] == 130 and len(codes) < 50:
        codes.append(main([*command, "--resume"]))
    assert codes[0] == 130
    assert codes[-1] == 0
    assert_same_run(tmp_path / "run", tmp_path / "whole")


def run_quickly(arguments: list[str]) -> None:
    """The command in a process of its own; its workers start at once, and it draws nothing."""
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    engine.multiprocessing.get_context = lambda kind: fork  # type: ignore[assignment]
    run_command.show_run = lambda *given: None  # type: ignore[assignment]
    report.write_report = lambda directory: directory
    os._exit(main(arguments))


def ended(arguments: list[str], seconds: float | None) -> bool:
    """Run a command and kill it after some time; true if it had come to its end."""
    child = fork.Process(target=run_quickly, args=(arguments,))
    child.start()
    child.join(seconds)
    if child.exitcode is None:
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode == 0


def assert_same_run(run: Path, whole: Path) -> None:
    """Options, measurements, the last state and the checksums are the same, bit for bit."""
    assert (run / "SHA256SUMS").read_bytes() == (whole / "SHA256SUMS").read_bytes()
    parts = sorted(part.name for part in (whole / "parts").iterdir() if part.is_dir())
    assert sorted(part.name for part in (run / "parts").iterdir() if part.is_dir()) == parts
    for name in parts:
        mine, other = run / "parts" / name, whole / "parts" / name
        assert (mine / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
        assert_same_state(load_checkpoint(mine), load_checkpoint(other))


def assert_same_state(first: Any, second: Any) -> None:
    if isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    elif isinstance(first, dict):
        assert first.keys() == second.keys()
        for name in first:
            assert_same_state(first[name], second[name])
    else:
        assert first == second


@pytest.mark.slow
def test_five_experiments_killed_at_random_moments_end_as_if_they_were_not(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.multiprocessing, "get_context", lambda kind: fork)
    monkeypatch.setattr(run_command, "show_run", lambda *given: None)
    monkeypatch.setattr(report, "write_report", lambda directory: directory)
    kills = dict.fromkeys(TINY, 0)
    lasts: dict[str, float] = {}
    for number, experiment in enumerate(itertools.cycle(TINY)):
        if sum(kills.values()) >= KILLS - KILLS // 5:
            break
        whole, run = tmp_path / "whole" / experiment, tmp_path / str(number)
        if experiment not in lasts:
            assert main(tiny_run(experiment, data, whole)) == 0  # here: children import nothing
            start = time.monotonic()
            assert ended(tiny_run(experiment, data, tmp_path / "timed" / experiment), None)
            lasts[experiment] = time.monotonic() - start
        moments, command = random.Random(number), tiny_run(experiment, data, run)
        for _ in range(4):
            if ended(command, moments.uniform(0.05, 0.6) * lasts[experiment]):
                break
            kills[experiment] += 1
            if run.exists() and "--resume" not in command:
                command.append("--resume")
        resume = ["--resume"] if (run / "config.json").exists() else []
        assert ended([*tiny_run(experiment, data, run), *resume], None)
        assert_same_run(run, whole)
    print("kills:", kills)


@pytest.mark.slow
def test_drivers_of_a_ray_cluster_killed_at_random_moments_end_as_if_they_were_not(
    tmp_path: Path, data: Path
) -> None:
    cluster = start_cluster(nodes=2)
    kills = dict.fromkeys(TINY, 0)
    try:
        for number, experiment in enumerate(itertools.cycle(TINY)):
            if sum(kills.values()) >= KILLS // 5:
                break
            whole, run = tmp_path / "whole" / experiment, tmp_path / str(number)
            if not whole.exists():
                assert ended(tiny_run(experiment, data, whole), None)  # by the other engine
            command = [sys.executable, "-m", "ewc_paper", *tiny_run(experiment, data, run)]
            command += ["--engine", "ray", "--address", cluster.address]
            moments = random.Random(number)
            for _ in range(2):
                killed = run_until_killed(command, moments.uniform(0.0, 2.0), run)
                kills[experiment] += killed
                if (run / "config.json").exists() and "--resume" not in command:
                    command.append("--resume")
            subprocess.run(command, check=True, capture_output=True)
            assert_same_run(run, whole)
            assert not list(run.rglob(".token-*"))
    finally:
        cluster.shutdown()
    print("kills on Ray:", kills)


def run_until_killed(command: list[str], seconds: float, run: Path) -> bool:
    """Kill a process some time after it has begun to write its run; false if it ended before."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, **quiet)  # type: ignore[call-overload]
    progress = run / "progress.json"
    before = progress.stat().st_mtime_ns if progress.exists() else 0
    while process.poll() is None:
        if progress.exists() and progress.stat().st_mtime_ns != before:
            break
        time.sleep(0.05)
    time.sleep(seconds)
    killed = process.poll() is None
    process.kill()
    process.wait()
    return killed
