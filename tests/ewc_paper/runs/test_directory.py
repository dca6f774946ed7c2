"""A run directory is never overwritten, and never written by two processes at once."""

import multiprocessing
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ewc_paper.errors import RunError
from ewc_paper.runs.checkpoint import save_checkpoint
from ewc_paper.runs.directory import RunDirectory


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "a" / "run")
    run.start({"seed": 1, "strengths": (1.0, 2.0)})
    assert run.config()["versions"]["torch"] == torch.__version__
    with pytest.raises(
        RunError, match=r"exists: continue it with --resume, or choose another --out"
    ):
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
        "the last checkpoint is intact: free disk space and continue with --resume"
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


def two_parts_of_metrics(path: Path, *, finished: bool) -> RunDirectory:
    run = RunDirectory(path)
    run.start({"seed": 1})
    for task in range(2):
        run.append({"task": task, "loss": 0.25})
    run.save({"here": 1}, finished=finished)
    run.append({"task": 2, "loss": 0.25})
    return run


def cut(metrics: Path) -> None:
    metrics.write_bytes(metrics.read_bytes()[:30])


def change_a_digit(metrics: Path) -> None:
    metrics.write_bytes(metrics.read_bytes().replace(b"0.25", b"0.75", 1))


@pytest.mark.parametrize(
    ("lose", "said"),
    [
        (cut, r"metrics.jsonl has lost measurements: .* after 52 bytes, and 30 are there"),
        (Path.unlink, r"metrics.jsonl has lost measurements: .* after 52 bytes, and 0 are there"),
        (change_a_digit, r"metrics.jsonl was changed after its checkpoint was written"),
    ],
)
@pytest.mark.parametrize("finished", [False, True])
def test_lost_or_altered_metrics_are_refused(
    tmp_path: Path, lose: Callable[[Path], None], said: str, finished: bool
) -> None:
    run = two_parts_of_metrics(tmp_path, finished=finished)
    lose(tmp_path / "metrics.jsonl")
    left = sorted(tmp_path.iterdir())
    for ask in (run.load, run.finished, run.check):
        with pytest.raises(RunError, match=said):
            ask()
    assert sorted(tmp_path.iterdir()) == left  # nothing is made up in its place


def test_a_checkpoint_of_other_options_is_refused(tmp_path: Path) -> None:
    run = two_parts_of_metrics(tmp_path / "mine", finished=False)
    other = RunDirectory(tmp_path / "other")
    other.start({"seed": 2})
    other.save({"here": 3})
    (other.path / "checkpoint.safetensors").replace(run.path / "checkpoint.safetensors")
    with pytest.raises(RunError, match="belongs to a run with other options"):
        run.load()


def test_a_checkpoint_from_before_there_were_checksums_is_gone_on_from(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.append({"task": 0})
    old = {"state": {"here": 1}, "metrics_bytes": 12, "finished": False}
    save_checkpoint(tmp_path, old)
    assert run.load() == {"here": 1}
    assert run.rows() == [{"task": 0}]


@pytest.mark.parametrize(
    "line", [b"\0" * 12, b"", b'{"task": 1', b"[1, 2]", b"\xff{}", b"9" * 5000]
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    run = RunDirectory(tmp_path)
    run.append({"task": 0})
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.write(line + b"\n")
    run.append({"task": 2})
    with pytest.raises(RunError, match=r"line 2 of .*metrics\.jsonl is damaged: expected a? ?JSON"):
        run.rows()


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_damaged_config_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(RunError, match=r"config\.json is damaged: expected"):
        RunDirectory(tmp_path).config()


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl"])
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    run = RunDirectory(tmp_path)
    with pytest.raises(RunError, match="expected a file, got a directory, pipe or device"):
        run.config() if name == "config.json" else run.rows()


def test_a_run_needs_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "dangling"):
        with pytest.raises(RunError, match=f"{name} is not a directory: choose another --out"):
            RunDirectory(tmp_path / name).start({})
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl", "parts", "new.safetensors"])
def test_a_run_is_not_gone_on_with_through_a_link(tmp_path: Path, name: str) -> None:
    run = two_parts_of_metrics(tmp_path / "run", finished=False)
    target = tmp_path / "target"
    target.write_text("years of work")
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(target)
    with pytest.raises(RunError, match=f"{name} is a symbolic link"):
        run.start({"seed": 1}, resume=True)
    assert target.read_text() == "years of work"


def test_a_link_to_a_run_directory_is_no_link_inside_it(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    RunDirectory(tmp_path / "run").start({"seed": 1})
    assert (tmp_path / "disk" / "config.json").exists()


def test_the_lock_does_not_empty_the_target_of_a_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("years of work")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"), RunDirectory(tmp_path / "run").locked():
        pass
    assert target.read_text() == "years of work"


def test_a_run_is_being_written_while_another_process_holds_its_lock(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert not run.is_being_written()  # no lock was ever there
    with run.locked():
        assert run.is_being_written()
    assert not run.is_being_written()


def test_a_lock_that_is_a_link_or_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("link", "pipe"):
        (tmp_path / name).mkdir()
    (tmp_path / "link" / "lock").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe" / "lock")
    assert not RunDirectory(tmp_path / "link").is_being_written()
    assert not RunDirectory(tmp_path / "pipe").is_being_written()
