"""What was lost, changed or added after the end is noticed by every reader, and named."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.runs import OPTIONS, InlineEngine, write_data

from ewc_paper.cli import main
from ewc_paper.errors import Damaged
from ewc_paper.experiments.many_tasks import ManyTasks
from ewc_paper.experiments.view import check_run
from ewc_paper.runs.checksums import (
    SUMS,
    read_sums,
    seal,
    share_sums,
    with_checksum,
    without_checksum,
)
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import run_parts
from ewc_paper.sweeps.search import search
from ewc_paper.sweeps.sweep import Plan, Sweep

STORED = Path(__file__).parents[3] / "docs" / "results"
RUN = ("run", "figure", "report")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, in `run`, and a finished sweep of three trials with one run again."""
    place = tmp_path_factory.mktemp("made")
    data = write_data(place / "data")
    changes = {**OPTIONS, "data": str(data), "methods": ("ewc", "sgd"), "validation_samples": 40}
    config = ManyTasks.preset("quick", **changes)
    run = RunDirectory(place / "run")
    run.start(config.to_dict())
    for _ in run_parts(run, config.parts(), engine=InlineEngine(), checkpoint_seconds=1e9):
        pass
    seal(run.path)
    sweep = Sweep(place / "sweep")
    plan = Plan(config, ("lr=0.01,0.1,1",), 3, 1, grid=True, best_seeds=1)
    sweep.path.mkdir()
    sweep.write(plan)
    for _ in search(sweep, plan, engine=InlineEngine(), checkpoint_seconds=1e9):
        pass
    return place


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "run", tmp_path / "run"))


@pytest.fixture
def sweep(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "sweep", tmp_path / "sweep"))


def without_checkpoints(run: Path) -> None:
    """As results are stored in a repository: the small files alone, listed in one place."""
    for file in [*run.rglob("*.safetensors"), *run.rglob("lock"), *run.glob("**/parts/*/" + SUMS)]:
        file.unlink()


def drop_a_row(metrics: Path) -> None:
    metrics.write_bytes(b"".join(metrics.read_bytes().splitlines(keepends=True)[1:]))


def double_a_row(metrics: Path) -> None:
    first = metrics.read_bytes().splitlines(keepends=True)[0]
    metrics.write_bytes(first + metrics.read_bytes())


def swap_rows(metrics: Path) -> None:
    metrics.write_bytes(b"".join(reversed(metrics.read_bytes().splitlines(keepends=True))))


def append_a_row(metrics: Path) -> None:
    *_, last = metrics.read_text().splitlines()
    better = json.loads(last) | {"accuracy": [0.99, 0.99]}
    with open(metrics, "a") as file:
        file.write(json.dumps(better) + "\n")


def empty(metrics: Path) -> None:
    metrics.write_bytes(b"")


def cut(metrics: Path) -> None:
    metrics.write_bytes(metrics.read_bytes()[:-20])


CHANGES = (drop_a_row, double_a_row, swap_rows, append_a_row, empty, cut, Path.unlink)


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says that ends with 1, in lines that each begin with the program's name."""
    capsys.readouterr()
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert all(line.startswith("ewc: ") for line in said.err.splitlines())
    return said.out + said.err


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("stored", [False, True])
def test_every_reader_refuses_metrics_that_were_changed(
    run: Path, stored: bool, change: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    if stored:
        without_checkpoints(run)
    assert main(["figure", str(run)]) == 0
    change(run / "parts" / "ewc-0-seed0" / "metrics.jsonl")
    for command in ("figure", "report", "status"):
        assert "metrics.jsonl" in refusal([command, str(run)], capsys)
    assert "1 done, 1 damaged of 2 networks" in refusal(["status", str(run)], capsys)


@pytest.mark.parametrize("change", CHANGES)
def test_a_damaged_trial_is_named_and_has_no_rank(
    sweep: Path, change: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    change(sweep / "trials" / "0001-seed0" / "parts" / "ewc-0-seed0" / "metrics.jsonl")
    said = refusal(["figure", str(sweep)], capsys)
    assert "trial 1 is damaged, --resume runs it again" in said
    assert "0001-seed0/parts/ewc-0-seed0/metrics.jsonl" in refusal(["report", str(sweep)], capsys)
    assert "1 damaged of" in refusal(["status", str(sweep)], capsys)


@pytest.mark.parametrize(
    "lost", ["trials/0001-seed0", "trials/0002-seed0/config.json", "trials/0002-seed0/parts"]
)
def test_what_is_lost_of_a_sweep_is_missed(
    lost: str, sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = sweep / lost
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    for command in ("figure", "report", "status"):
        said = refusal([command, str(sweep)], capsys)
        assert "is lost: SHA256SUMS lists it" in said or "it has no config.json" in said


def test_options_that_are_edited_are_not_shown_beside_the_scores(
    run: Path, sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (
        run / "config.json",
        sweep / "sweep.json",
        sweep / "trials/0000-seed0/config.json",
    ):
        file.write_text(file.read_text().replace('"width": 8', '"width": 400'))
        top = run if file.parent == run else sweep
        for command in ("figure", "report", "status"):
            said = refusal([command, str(top)], capsys)
            assert f"{file} was changed after it was" in said
        file.write_text(file.read_text().replace('"width": 400', '"width": 8'))
    assert main(["status", str(sweep)]) == 0


def test_a_config_that_lost_its_checksum_is_not_taken_for_an_older_one(run: Path) -> None:
    file = run / "config.json"
    config = json.loads(file.read_text())
    del config["sha256"]
    file.write_text(json.dumps(config | {"width": 400}))
    with pytest.raises(Damaged, match="was changed after it was written"):
        RunDirectory(run).config()


def test_a_record_of_an_older_version_has_no_checksum() -> None:
    old = {"experiment": "strength", "versions": {"ewc": "0.1.0"}}
    assert without_checksum(old, "config.json") == old
    assert without_checksum(with_checksum(old), "config.json") == old


def test_two_trials_that_are_swapped_are_noticed_before_the_sweep_is_over(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (sweep / SUMS).unlink()
    first, second = (sweep / "trials" / f"000{trial}-seed0" for trial in (0, 1))
    first.rename(sweep / "kept")
    second.rename(first)
    (sweep / "kept").rename(second)
    said = refusal(["figure", str(sweep)], capsys)
    assert "has lr = 0.1, but the sweep has 0.01: it is another run" in said


def test_a_part_that_was_added_to_a_finished_run_is_refused(run: Path) -> None:
    shutil.copytree(run / "parts" / "ewc-0-seed0", run / "parts" / "ewc-0-seed1")
    with pytest.raises(Damaged, match="ewc-0-seed1 is no part of this run"):
        check_run(RunDirectory(run))


def test_a_part_that_was_removed_is_missed_until_it_is_run_again(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Path("parts") / "sgd-0-seed0" / "metrics.jsonl"
    before = (run / metrics).read_bytes()
    shutil.rmtree(run / "parts" / "sgd-0-seed0")
    for command in ("figure", "report", "status"):
        assert "is lost: SHA256SUMS lists it" in refusal([command, str(run)], capsys)
    share_sums(run)  # what --resume begins with
    config = ManyTasks.restored(RunDirectory(run).config())
    parts = config.parts()
    for _ in run_parts(RunDirectory(run), parts, engine=InlineEngine(), checkpoint_seconds=1e9):
        pass
    seal(run)
    assert (run / metrics).read_bytes() == before
    assert main(["figure", str(run)]) == 0


def test_a_stored_run_is_finished_and_is_not_trained_again(run: Path) -> None:
    without_checkpoints(run)
    before = {file: file.read_bytes() for file in run.rglob("metrics.jsonl")}
    share_sums(run)
    engine = InlineEngine()
    config = ManyTasks.restored(RunDirectory(run).config())
    for _ in run_parts(RunDirectory(run), config.parts(), engine=engine, checkpoint_seconds=1e9):
        pass
    assert len(engine.pieces) == 2  # one report of each: it is finished
    assert {file: file.read_bytes() for file in run.rglob("metrics.jsonl")} == before


@pytest.mark.parametrize("content", [b"", b"\xff", b"abc  metrics.jsonl\n", b"0" * 64 + b"  a"])
def test_checksums_that_are_damaged_themselves_are_named(run: Path, content: bytes) -> None:
    (run / "parts" / "ewc-0-seed0" / SUMS).write_bytes(content)
    with pytest.raises(Damaged, match=f"{SUMS} is damaged: expected a checksum"):
        check_run(RunDirectory(run))


def test_the_program_of_that_name_verifies_them(run: Path, sweep: Path) -> None:
    for place in (run, sweep, run / "parts" / "ewc-0-seed0"):
        subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=place, check=True)


def test_checksums_of_other_people_are_left_alone(run: Path) -> None:
    (run.parent / SUMS).write_text("the sums of an image that was downloaded\n")
    check_run(RunDirectory(run))


@pytest.mark.parametrize(
    "stored",
    [file.parent for file in sorted([*STORED.glob("*/config.json"), *STORED.glob("*/sweep.json")])],
    ids=lambda path: path.name,
)
def test_a_stored_result_is_sealed_and_counts_as_done(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sums = read_sums(stored)
    assert sums is not None
    assert sums.keys() >= {str(file.relative_to(stored)) for file in stored.rglob("metrics.jsonl")}
    assert main(["status", str(stored)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "done of" in first
    assert second == "100.0 % done"
