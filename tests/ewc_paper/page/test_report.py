"""One page for one run, for several, and for a directory of runs."""

import os
import re
from pathlib import Path

import pytest
from support.small_runs import make_learning_curves, make_many_tasks, make_strength

from ewc_paper.errors import RunError
from ewc_paper.page.document import LIMIT
from ewc_paper.page.report import build_page, runs_in, write_report

STORED = sorted(Path(__file__).parents[3].glob("docs/results/*/config.json"))


def headings(page: bytes) -> list[str]:
    return re.findall(r"<h[12][^>]*>([^<]*)</h", page.decode())


@pytest.mark.parametrize("config", STORED, ids=lambda config: config.parent.name)
def test_every_stored_run_has_a_page(config: Path) -> None:
    page = build_page([config.parent])
    assert len(page) < LIMIT
    assert page.count(b'class="chart"') > 0
    assert b"left out" not in re.sub(rb"<script.*?</script>|<table.*?</table>", b"", page)


def test_the_page_is_written_into_the_run_directory(tmp_path: Path) -> None:
    run = make_learning_curves(tmp_path / "first")
    file = write_report(run.path)
    assert file == tmp_path / "first" / "report.html"
    assert headings(file.read_bytes()) == ["first", "learning-curves"]
    assert write_report(run.path).read_bytes() == build_page(
        [run.path]
    )  # nothing of the day is in it


def test_a_directory_of_runs_has_an_overview(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    for number in (0, 1):
        make_learning_curves(sweep / f"trial{number}")
    text = (sweep / "trial1" / "config.json").read_text()
    (sweep / "trial1" / "config.json").write_text(text.replace('"epochs": 2', '"epochs": 3'))
    page = build_page([sweep])
    assert headings(page) == ["sweep", "trial0", "trial1"]
    overview = re.findall(r"<table>.*?</table>", page.decode(), re.DOTALL)[0]
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t", overview)
    assert cells[:4] == ["run", "experiment", "networks", "epochs"]
    assert cells[4:] == [
        "trial0",
        "learning-curves",
        "2",
        "2",
        "trial1",
        "learning-curves",
        "2",
        "3",
    ]


def test_several_runs_are_on_one_page(tmp_path: Path) -> None:
    runs = [make_many_tasks(tmp_path / "a").path, make_strength(tmp_path / "b").path]
    assert headings(build_page(runs)) == ["a, b", "a", "b"]


def test_a_damaged_run_among_others_says_what_is_wrong(tmp_path: Path) -> None:
    make_many_tasks(tmp_path / "good")
    make_learning_curves(tmp_path / "bad").part("ewc").append({"task": 9})
    (tmp_path / "worse").mkdir()
    (tmp_path / "worse" / "config.json").write_text("[")
    page = build_page([tmp_path]).decode()
    assert headings(page.encode()) == [tmp_path.name, "bad", "good", "worse"]
    assert "task: expected a whole number" in page
    assert "worse/config.json is damaged" in page
    with pytest.raises(RunError, match="task: expected a whole number"):
        build_page([tmp_path / "bad"])


def test_runs_that_do_not_fit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        make_learning_curves(tmp_path / f"run{number}")
    one, four = (len(build_page([place])) for place in (tmp_path / "run0", tmp_path))
    section = (four - one) // 3
    monkeypatch.setattr("ewc_paper.page.report.ROOM", 2 * section)
    page = build_page([tmp_path])
    shown = headings(page)[1:]
    assert shown in (["run0"], ["run0", "run1"], ["run0", "run1", "run2"])
    assert f"{4 - len(shown)} more runs do not fit into one page" in page.decode()
    assert len(page) < one + 2 * section


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_directory_without_a_run_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=f"{name} holds no run: expected a config.json"):
        runs_in(tmp_path / name)


def test_nothing_outside_is_read_through_a_link(tmp_path: Path) -> None:
    run = make_learning_curves(tmp_path / "run")
    (tmp_path / "secret").write_text("secret")
    file = run.part("ewc").path / "config.json"
    file.unlink()
    os.symlink(tmp_path / "secret", file)
    with pytest.raises(RunError, match="is a symbolic link"):
        build_page([run.path])
