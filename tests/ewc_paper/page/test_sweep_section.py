"""The page of a sweep: what was chosen, on new seeds, and all that was tried."""

import json
import re
import shutil
from pathlib import Path

import pytest

from ewc_paper.cli import main
from ewc_paper.errors import RunError
from ewc_paper.experiments.many_tasks.run import ManyTasks
from ewc_paper.page.command_line import sweeping_command
from ewc_paper.page.document import LIMIT
from ewc_paper.page.report import build_page
from ewc_paper.sweeps.sweep import Plan, Sweep

STORED = Path(__file__).parents[3] / "docs" / "results" / "many-tasks-search"


def tables(page: str) -> dict[str, list[list[str]]]:
    """The tables of a page: rows of cells by caption."""
    found = {}
    for table in re.findall(r"<table>(.*?)</table>", page, re.DOTALL):
        rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        caption = re.findall(r"<caption>(.*?)</caption>", table)[0]
        found[caption] = [re.findall(r"<t[hd][^>]*>([^<]*)</t", row) for row in rows]
    return found


def test_the_stored_sweep_is_shown_with_its_figure_and_tables() -> None:
    content = build_page([STORED])
    assert len(content) < LIMIT
    page = content.decode()
    assert page.count('class="chart"') == 1
    shown = tables(page)
    last = shown["average test accuracy in % over all tasks so far"][-1]
    assert last == ["10", "90.43 ± 2.05", "80.49 ± 0.52"]
    chosen = json.loads((STORED / "sweep.json").read_text())["chosen"]
    best = shown["chosen trials, on seeds that chose nothing"][1:]
    assert {row[0]: int(row[1]) for row in best} == chosen
    (trials,) = [rows for caption, rows in shown.items() if caption.startswith("many-tasks, score")]
    assert sorted(int(row[0]) for row in trials[1:]) == list(range(50))


def test_the_command_of_a_sweep_plans_the_same_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ewc_paper.commands.sweep._search", lambda *given: {})
    monkeypatch.setattr("ewc_paper.commands.sweep.show", lambda path: 0)
    stored = Sweep(STORED).read()
    words = sweeping_command(stored).split()
    assert words[:2] == ["ewc", "sweep"]
    assert main([*words[1:], "--out", str(tmp_path / "again")]) == 0
    assert Sweep(tmp_path / "again").read() == stored


def test_a_grid_and_halving_are_in_the_command() -> None:
    base = ManyTasks.preset("quick")
    grid = Plan(base, ("lr=0.1,0.2",), 2, 3, grid=True)
    assert sweeping_command(grid) == (
        "ewc sweep many-tasks --preset quick --over lr=0.1,0.2 --seeds 3 --best-seeds 0"
    )
    halved = Plan(base, ("lr=log:0.01..1",), 8, 1, grid=False, halving=2.0)
    assert "--trials 8 --seeds 1 --halving 2" in sweeping_command(halved)


def test_a_sweep_that_has_not_begun_has_a_page(tmp_path: Path) -> None:
    Sweep(tmp_path).write(Plan(ManyTasks.preset("quick"), ("lr=log:0.01..1",), 2, 1, grid=False))
    page = build_page([tmp_path]).decode()
    assert "This sweep" in page
    assert 'class="chart"' not in page


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    shutil.copytree(STORED, sweep)
    part = sweep / "best" / "0024-ewc-seed1000" / "parts" / "ewc-0-seed1000"
    (part / "metrics.jsonl").write_text('{"task": "first", "task_ended": true}\n')
    with pytest.raises(RunError, match=r"line 1 of .*0024-ewc-seed1000.* cannot be drawn"):
        build_page([sweep])


def test_a_sweep_ends_well_though_a_damaged_trial_leaves_it_without_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "sweep"
    shutil.copytree(STORED, sweep)
    part = sweep / "best" / "0024-ewc-seed1000" / "parts" / "ewc-0-seed1000"
    (part / "metrics.jsonl").write_text('{"task": "first", "task_ended": true}\n')
    monkeypatch.setattr("ewc_paper.commands.sweep._search", lambda *given: {})
    monkeypatch.setattr("ewc_paper.commands.sweep.show", lambda path: 0)
    assert main(["sweep", "many-tasks", "--out", str(sweep), "--resume"]) == 0
    said = capsys.readouterr()
    assert "page:" not in said.out
    assert "no page: line 1 of" in said.err
