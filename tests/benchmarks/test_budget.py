"""The budget is compared with a search over λ on the same seeds, and with what is really lost."""

from pathlib import Path

import pytest
import torch

from benchmarks import budget, method_cells
from benchmarks.budget import cells_of, main, rise_lines, rises, table
from benchmarks.method_cells import make_learner
from benchmarks.method_results import Cell, CellRow
from ewc_paper.mnist.data import Data, Split

SIZE = Cell(tasks=2, images=256)


def tiny_split(samples: int, seed: int) -> Split:
    """Images whose labels can be learned: the brightest of the first ten pixels."""
    images = torch.rand(samples, 784, generator=torch.Generator().manual_seed(seed))
    return Split(images, images[:, :10].argmax(1))


@pytest.fixture
def tiny_data(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Data(tiny_split(256, 0), tiny_split(20, 1), tiny_split(30, 2))
    method_cells._data.cache_clear()
    monkeypatch.setattr(method_cells, "load", lambda **options: data)
    small = method_cells.replace(method_cells.CONFIG, width=8, segments=1)
    monkeypatch.setattr(method_cells, "CONFIG", small)


def result(cell: Cell) -> CellRow:
    accuracy = [0.9 + cell.seed / 100] * cell.tasks
    return CellRow(cell=cell, accuracy=accuracy, learned=accuracy, seconds=0.0)


def test_the_search_spans_six_decades_beside_plain_and_joint_training() -> None:
    cells = list(cells_of(SIZE))
    assert len(set(cells)) == len(cells)
    strengths = {cell.strength for cell in cells if cell.method == budget.EWC and not cell.budget}
    assert {10.0**power for power in range(7)} <= strengths
    assert {"naive", "joint"} <= {cell.method for cell in cells}
    assert budget.DEFAULT in {cell.budget for cell in cells}


def test_the_table_has_what_is_finished_for_all_seeds() -> None:
    sizes = [method_cells.replace(SIZE, seed=seed) for seed in (0, 1)]
    rows = {cell: result(cell) for cell in cells_of(sizes[0])}
    rows |= {cell: result(cell) for cell in list(cells_of(sizes[1]))[:2]}
    lines = table(sizes, rows)
    assert lines[2:] == [
        "| plain training | 90.50 ± 0.71 | 90.50 ± 0.71 | 90.50 ± 0.71 |",
        "| the default budget | 90.50 ± 0.71 | 90.50 ± 0.71 | 90.50 ± 0.71 |",
    ]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_cell_has_its_budget_and_optimizer(tiny_data: None, optimizer: str) -> None:
    cell = method_cells.replace(SIZE, method=budget.EWC, optimizer=optimizer, budget=0.3)
    learner = make_learner(cell)
    assert learner.memory.budget == 0.3
    assert type(learner.optimizer).__name__.lower() == optimizer
    fixed = make_learner(method_cells.replace(cell, budget=0.0, strength=7.0))
    assert (fixed.memory.budget, fixed.memory.strength) == (None, 7.0)


def test_rises_are_those_of_the_first_task(tiny_data: None) -> None:
    """A smaller budget lets the estimate rise less; the real rise is a difference of losses."""
    cell = method_cells.replace(SIZE, method=budget.EWC, epochs=20)
    small, large = (rises(method_cells.replace(cell, budget=value)) for value in (1e-6, 1.0))
    assert 0 < small[0] < large[0]
    assert small[1] < large[1]


def test_the_command_trains_and_prints(
    tiny_data: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    arguments = ["--tasks", "2", "--seeds", "1", "--images", "256", "--results", str(file)]
    main([*arguments, "--table"])
    assert "plain" not in capsys.readouterr().out
    main(arguments)
    printed = capsys.readouterr().out
    assert printed.count("| plain training |") == printed.count("| the default budget") == 2
    assert len(file.read_text().splitlines()) == 2 * len(list(cells_of(SIZE)))
    main([*arguments, "--table"])
    assert capsys.readouterr().out.strip() in printed


def test_rises_are_printed_for_both_optimizers(tiny_data: None) -> None:
    lines = list(rise_lines(SIZE))
    assert len(lines) == 2 + 2 * 4
    assert "| sgd | auto |" in lines[-1]


def test_nonsense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", "0"])
    assert "expected --seeds of at least 1" in capsys.readouterr().err
