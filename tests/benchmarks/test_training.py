"""Training throughput is measured for the same number of images."""

import pytest
import torch

from benchmarks import training


def test_our_loop_is_compared_with_a_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "SAMPLES", 256)
    monkeypatch.setattr(training, "ROUNDS", 1)
    (table,) = training.tables(ours_only=True)
    assert [row["method"] for row in table.rows] == ["ewc", "DataLoader loop"]
    assert table.rows[0]["multiple"] == 1.0
    assert all(row["samples per second"] > 0 for row in table.rows)


def test_the_share_of_matrix_products_is_a_fraction() -> None:
    matrix = torch.rand(64, 64)
    assert 0 < training.matrix_share(lambda: matrix @ matrix) <= 1
    assert training.matrix_share(lambda: matrix + matrix) == 0
