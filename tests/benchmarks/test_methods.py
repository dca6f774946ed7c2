"""The search finds the best strength and stops; the table is of other seeds than the search."""

import math
from pathlib import Path

import pytest

from benchmarks import methods
from benchmarks.method_results import Cell, CellRow
from benchmarks.methods import HALVES, SEARCH_SEED, main, next_halves, run


@pytest.mark.parametrize("peak", [-7, -2, 0, 1, 3, 6])
def test_the_search_ends_at_the_peak(peak: int) -> None:
    scores: dict[int, float] = {}
    while wanted := next_halves(scores):
        scores |= {half: -abs(half - peak - 0.1) for half in wanted}
    assert max(scores, key=scores.__getitem__) == peak
    assert {peak - 1, peak, peak + 1} <= scores.keys()
    assert len(scores) <= 9


def test_a_search_that_only_rises_ends() -> None:
    scores: dict[int, float] = {}
    while wanted := next_halves(scores):
        scores |= {half: float(half) for half in wanted}
    assert max(scores) == max(HALVES)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """The cells that are trained while the test runs; λ = 100 is best, or 1 for seeds reported."""
    cells: list[Cell] = []

    def fake(wanted: list[Cell], rows: dict[Cell, CellRow], file: Path, workers: int) -> None:
        for cell in wanted:
            if cell in rows:
                continue
            cells.append(cell)
            far = abs(math.log10(cell.strength or 1) - (2 if cell.seed == SEARCH_SEED else 0))
            accuracy = [0.9 - far / 100 + cell.seed % 1000 / 100] * cell.tasks
            rows[cell] = CellRow(cell=cell, accuracy=accuracy, learned=accuracy, seconds=0.0)

    monkeypatch.setattr(methods, "train_cells", fake)
    return cells


def test_strengths_are_chosen_on_seeds_and_images_of_their_own(
    trained: list[Cell], tmp_path: Path
) -> None:
    size = Cell(tasks=4, images=100)
    lines = run(["naive", "si"], size, 2, 2, tmp_path / "none.jsonl", 1)
    searched = [cell for cell in trained if cell.seed == SEARCH_SEED]
    reported = [cell for cell in trained if cell.seed != SEARCH_SEED]
    assert {cell.method for cell in searched} == {"si"}
    assert all(cell.held_out and cell.tasks == 2 for cell in searched)
    assert [(cell.method, cell.strength, cell.seed) for cell in reported] == [
        ("naive", 0.0, 0),
        ("naive", 0.0, 1),
        ("si", 100.0, 0),
        ("si", 100.0, 1),
    ]
    assert all(not cell.held_out and cell.tasks == 4 for cell in reported)
    assert lines[-1] == "| synaptic intelligence | 100 |" + " 88.50 ± 0.71 |" * 4
    assert lines[-2] == "| none |  |" + " 90.50 ± 0.71 |" * 4


def test_the_command_prints_the_table(
    trained: list[Cell], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "none.jsonl")
    main(["--methods", "naive", "--tasks", "3", "--seeds", "1", "--results", file])
    assert capsys.readouterr().out.splitlines()[-1].startswith("| none |  | 90.00 |")
    assert [cell.tasks for cell in trained] == [3]


def test_nonsense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--search-tasks", "0"])
    assert "expected --search-tasks of at least 1" in capsys.readouterr().err
