"""`ewc report` and `ewc watch` on the command line."""

from pathlib import Path

import pytest
from support.small_runs import make_learning_curves, make_strength

from ewc_paper.cli import main


def test_report_writes_the_page_and_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_learning_curves(tmp_path / "run")
    assert main(["report", str(run.path)]) == 0
    assert capsys.readouterr().out == f"page: {run.path}/report.html\n"
    assert b"<h1>run</h1>" in (run.path / "report.html").read_bytes()


def test_several_runs_make_one_page_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_learning_curves(tmp_path / "a")
    make_strength(tmp_path / "b")
    assert main(["report", "a", "b"]) == 0
    assert b"<h1>a, b</h1>" in (tmp_path / "report.html").read_bytes()
    assert main(["report", "a", "b", "--out", "pages/both.html"]) == 0
    assert (tmp_path / "pages" / "both.html").is_file()


def test_a_page_is_not_written_through_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_learning_curves(tmp_path / "run")
    (tmp_path / "target").write_text("mine")
    (run.path / "report.html").symlink_to(tmp_path / "target")
    assert main(["report", str(run.path)]) == 1
    assert "is a symbolic link" in capsys.readouterr().err
    assert (tmp_path / "target").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", "nowhere"], "nowhere holds no run"),
        (["watch", "nowhere"], "nowhere is not a directory"),
        (["watch", ".", "--port", "70000"], "--port must be 0 to 65535, got 70000"),
    ],
)
def test_what_does_not_fit_is_one_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"ewc: {said}")
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())
