"""Files cut, lost, garbled or swapped: the right result or one line, never a traceback.

A finished and an unfinished run are damaged at random, one file at a time. `figure` must then print
the table of the whole run, and `--resume` must end with its metrics, or each must give up with one
line. Options in a config.json that still parse may be altered without notice by `figure`.
"""

import multiprocessing
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.tiny import FLAGS, OPTIONS, write_data

from ewc_paper.cli import main
from ewc_paper.errors import Interrupted
from ewc_paper.experiments.learning_curves.run import LearningCurves
from ewc_paper.runs import local
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.loop import carry_on

METHODS = ("ewc", "sgd")
CONFIG = {**OPTIONS, "lr": 0.3, "methods": METHODS}  # enough for accuracies that differ
TRIALS = 25
Damage = Callable[[Path, random.Random], None]


def cut(file: Path, chance: random.Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: chance.randrange(len(content) or 1)])


def delete(file: Path, chance: random.Random) -> None:
    file.unlink()


def garble(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(chance.choice((1, 1, 20))):
        content[chance.randrange(len(content))] = chance.randrange(256)
    file.write_bytes(content)


def blank(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    start = chance.randrange(len(content))
    content[start : start + 200] = bytes(len(content[start : start + 200]))
    file.write_bytes(content)


def swap(file: Path, chance: random.Random) -> None:
    """With the same file of the other part, or another file of this one."""
    run = next(place for place in file.parents if place.name == "run")
    others = sorted(set(run.rglob(file.name)) | set(file.parent.glob("*.*")) - {file})
    other = chance.choice([one for one in others if one.is_file()])
    kept = file.read_bytes()
    file.write_bytes(other.read_bytes())
    other.write_bytes(kept)


DAMAGES: tuple[Damage, ...] = (cut, delete, garble, blank, swap)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of fork start at once, with torch loaded."""
    fork = multiprocessing.get_context("fork")
    monkeypatch.setattr(local.multiprocessing, "get_context", lambda kind: fork)


def start(run: Path, data: Path, *more: str) -> int:
    options = ["--lr", "0.3", "--methods", *METHODS, "--checkpoint-seconds", "0", *more]
    return main(
        ["run", "learning-curves", "--data", str(data), "--out", str(run), *FLAGS, *options]
    )


def resume(run: Path, data: Path) -> int:
    return start(run, data, "--resume")


def stop_halfway(run: Path, whole: Path, data: Path) -> None:
    """A run of which one part is over and the other was stopped after three rows."""
    shutil.copytree(whole, run)
    sgd = RunDirectory(run).part("sgd")
    sgd.remove(["*.jsonl", "*.safetensors"])
    config = LearningCurves.preset("quick", **CONFIG, data=str(data))
    part = next(part for part in config.parts() if part.name == "sgd")
    turns = iter((False, False, True))
    with pytest.raises(Interrupted):
        carry_on(part.make(part.config), sgd, checkpoint_seconds=0, stop=lambda: next(turns))


def shown(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit code of `figure`, the table and the complaint."""
    capsys.readouterr()
    code = main(["figure", str(run)])
    out, err = capsys.readouterr()
    return code, out, err


def metrics(run: Path) -> dict[str, bytes]:
    return {name: (run / "parts" / name / "metrics.jsonl").read_bytes() for name in METHODS}


def assert_one_line(code: int, said: str, what: str) -> None:
    assert code in (1, 2), what
    assert said.startswith("ewc: "), what
    assert said.count("\n") == 1, what


@pytest.mark.slow
def test_damage_is_noticed_or_harmless(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, halfway = tmp_path / "whole", tmp_path / "halfway"
    assert start(whole, data) == 0
    stop_halfway(halfway, whole, data)
    expected = metrics(whole)
    for seed in range(TRIALS):
        chance = random.Random(seed)
        run = tmp_path / str(seed) / "run"
        shutil.copytree(chance.choice((whole, halfway)), run)
        before = shown(run, capsys)
        file = chance.choice(sorted(file for file in run.rglob("*.*") if file.is_file()))
        damage = chance.choice(DAMAGES)
        damage(file, chance)
        what = f"seed {seed}: {damage.__name__} {file.relative_to(run)}"

        code, table, said = shown(run, capsys)
        if code:
            assert_one_line(code, said, what)
        elif file.name != "config.json":
            assert (code, table) == before[:2], what

        code = resume(run, data)
        if code:
            assert_one_line(code, capsys.readouterr().err, what)
        else:
            assert metrics(run) == expected, what
