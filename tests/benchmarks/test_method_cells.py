"""Every method trains the same network, and is measured on the images that it is meant for."""

from pathlib import Path

import pytest
import torch

from benchmarks import method_cells
from benchmarks.method_cells import METHODS, train, train_cells
from benchmarks.method_results import Cell, CellRow, read_rows
from ewc_paper.mnist.data import Data, Split


def tiny_split(samples: int, seed: int) -> Split:
    random = torch.Generator().manual_seed(seed)
    images = torch.rand(samples, 784, generator=random)
    return Split(images, torch.randint(10, (samples,), generator=random))


@pytest.fixture(autouse=True)
def tiny_data(monkeypatch: pytest.MonkeyPatch) -> Data:
    data = Data(tiny_split(256, 0), tiny_split(20, 1), tiny_split(30, 2))
    method_cells._data.cache_clear()
    monkeypatch.setattr(method_cells, "load", lambda **options: data)
    monkeypatch.setattr(
        method_cells, "CONFIG", method_cells.replace(method_cells.CONFIG, width=8, segments=1)
    )
    return data


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_and_remembers_every_task(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    learner = METHODS[name].learner

    class Noted(learner):  # type: ignore[misc, valid-type]
        def __init__(self, *args: object) -> None:
            super().__init__(*args)
            made.append(self)

    changed = method_cells.replace(METHODS[name], learner=Noted)
    monkeypatch.setitem(METHODS, name, changed)
    strength, budget = changed.strength, changed.budget
    row = train(Cell(method=name, strength=strength, budget=budget, tasks=2))
    assert len(row["accuracy"]) == len(row["learned"]) == 2
    assert row["learned"][-1] == row["accuracy"][-1]
    memory = made[0].memory
    assert memory.budget == (budget or None)
    assert budget or memory.strength == strength
    assert memory.tasks == (("0", "1") if strength or budget else ())
    if memory.tasks:
        with torch.no_grad():
            for parameter in made[0].model.parameters():
                parameter.add_(0.1)
        assert memory.penalty() > 0


def test_the_search_never_sees_the_test_images(tiny_data: Data) -> None:
    assert method_cells._data(256, True).test is tiny_data.validation
    assert method_cells._data(256, False).test is tiny_data.test
    for held_out in (True, False):
        assert method_cells._data(256, held_out).train is tiny_data.train
        assert len(method_cells._data(256, held_out).validation) == 0


def test_cells_are_trained_once_and_stored_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    cells = [Cell(method="naive", seed=seed, tasks=1) for seed in range(2)]
    rows: dict[Cell, CellRow] = {}
    train_cells(cells[:1], rows, file, workers=1)
    first = file.read_bytes()
    train_cells(cells, rows, file, workers=1)
    assert file.read_bytes().startswith(first)
    assert list(read_rows(file)) == cells == list(rows)
