"""Results are whole lines: what a stop cut short is dropped, and nothing else."""

from pathlib import Path

import pytest

from benchmarks.method_results import Cell, CellRow, append_row, read_rows


def row(seed: int) -> CellRow:
    cell = Cell(method="si", strength=10**0.5, seed=seed, tasks=2)
    return CellRow(cell=cell, accuracy=[0.1, 0.9], learned=[0.8, 0.9], seconds=1.5)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "runs" / "results.jsonl"
    assert read_rows(file) == {}
    for seed in range(3):
        append_row(file, row(seed))
    assert read_rows(file) == {row(seed)["cell"]: row(seed) for seed in range(3)}


def test_every_cut_loses_one_row_at_most_and_the_next_one_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    for seed in range(2):
        append_row(file, row(seed))
    content = file.read_bytes()
    first = content.index(b"\n") + 1
    for length in range(first, len(content)):
        file.write_bytes(content[:length])
        assert list(read_rows(file)) == [row(0)["cell"]]
        append_row(file, row(5))
        assert list(read_rows(file)) == [row(0)["cell"], row(5)["cell"]]


@pytest.mark.parametrize("line", ["{", "[]", '{"cell": {"shape": 1}}', '{"cell": {}}'])
def test_a_line_that_is_no_result_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "results.jsonl"
    append_row(file, row(0))
    before = file.read_text() + line + "\n"
    file.write_text(before)
    with pytest.raises(ValueError, match="line 2: expected a result"):
        read_rows(file)
    assert file.read_text() == before
