"""A run directory is never overwritten, and never written by two processes at once."""

import multiprocessing
import resource
from pathlib import Path

import pytest
import torch

from ewc.runs.directory import RunDirectory
from ewc.runs.errors import RunError


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "a" / "run")
    run.start({"seed": 1, "strengths": (1.0, 2.0)})
    assert run.config()["versions"]["torch"] == torch.__version__
    with pytest.raises(RunError, match=r"exists: go on with --resume, or choose another --out"):
        run.start({"seed": 1, "strengths": (1.0, 2.0)})
    run.start({"seed": 1, "strengths": (1.0, 2.0)}, resume=True)
    with pytest.raises(RunError, match="started with seed = 1, not 2"):
        run.start({"seed": 2, "strengths": (1.0, 2.0)}, resume=True)
    assert run.config()["seed"] == 1


def test_other_files_are_not_mixed_with_a_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="not empty and holds no run"):
        RunDirectory(tmp_path).start({})
    with pytest.raises(RunError, match="not a run directory"):
        RunDirectory(tmp_path).config()


def test_a_line_that_is_half_written_is_not_read(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.append({"task": 0, "loss": 0.1})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"task": 1, "lo')
    assert run.rows() == [{"task": 0, "loss": 0.1}]


def test_rows_after_the_checkpoint_are_cut_off(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.append({"task": 0})
    run.save({"here": 1})
    run.append({"task": 1})
    assert run.load() == {"here": 1}
    assert run.rows() == [{"task": 0}]
    assert not run.finished()
    run.save({"here": 2}, finished=True)
    assert run.finished()


def _write_much(path: Path) -> None:
    run = RunDirectory(path)
    run.append({"task": 0})
    run.save({"weights": torch.zeros(10)})
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # as a disk that is full
    for row in ({"task": 1}, {"text": "x" * 20_000}):
        try:
            run.append(row)
            run.save({"weights": torch.zeros(10_000)})
        except RunError as error:
            (path / "said").write_text(str(error))


def test_a_write_that_does_not_fit_is_a_clear_error(tmp_path: Path) -> None:
    child = multiprocessing.get_context("fork").Process(target=_write_much, args=(tmp_path,))
    child.start()
    child.join()
    assert (
        "the last checkpoint is intact: make room and go on with --resume"
        in (tmp_path / "said").read_text()
    )
    run = RunDirectory(tmp_path)
    state = run.load()
    assert state is not None
    assert torch.equal(state["weights"], torch.zeros(10))
    assert run.rows() == [{"task": 0}]


def test_two_processes_cannot_write_to_one_run(tmp_path: Path) -> None:
    with (
        RunDirectory(tmp_path).locked(),
        pytest.raises(RunError, match="being written by another process"),
        RunDirectory(tmp_path).locked(patience_seconds=0.2),
    ):
        pass
    with RunDirectory(tmp_path).locked(patience_seconds=0):
        assert (tmp_path / "lock").exists()
