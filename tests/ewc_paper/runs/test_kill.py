"""A run killed at any moment, even in a checkpoint, is resumed and ends the same, bit for bit."""

import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support.tiny import FLAGS, OPTIONS, write_data

from ewc_paper.experiments.learning_curves.run import LearningCurves
from ewc_paper.runs import checkpoint
from ewc_paper.runs.checkpoint import load_checkpoint
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.loop import carry_on

# A child of fork starts at once, with torch loaded: many kills in a short time.
fork = multiprocessing.get_context("fork")


def train(run: RunDirectory, data: Path, before: Callable[[], None] = lambda: None) -> None:
    (part,) = LearningCurves.preset("quick", **OPTIONS, data=str(data), methods=("ewc",)).parts()
    before()
    carry_on(part.make(part.config), run, checkpoint_seconds=0)


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
    command = [sys.executable, "-m", "ewc_paper.cli", *run, *options]
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
