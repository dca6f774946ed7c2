"""What is timed with the pull is really pulled, and its memory is measured."""

import pytest
import torch
from torch import nn

from benchmarks import pull
from benchmarks.models import Transformer


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.models.VOCABULARY", 50)
    monkeypatch.setattr(pull, "WIDTH", 8)
    monkeypatch.setattr(pull, "ROUNDS", 1)
    monkeypatch.setattr(pull, "TRAINING_ROUNDS", 1)


def test_a_schedule_changes_the_rate_and_a_pull_the_weights() -> None:
    weights = {}
    for pulled in (True, False):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer, scheduler = pull.make_optimizer(model, pulled, True, 0.01)
        model.weight.data += 1000.0  # far from the anchor
        model.weight.grad = torch.ones(2, 3)
        for _ in range(3):
            optimizer.step()
            scheduler.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-4 / 4)
        weights[pulled] = model.weight.detach()
    assert not torch.equal(weights[True], weights[False])


def test_all_ways_are_compared_with_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(p.numel() for p in Transformer(8).parameters())
    monkeypatch.setattr(pull, "in_a_process", lambda: (8 * size, size // 2))
    alone, training, memory = pull.tables(ours_only=True)
    for table in (alone, training):
        assert table.rows[0]["method"] == "plain"
        assert table.rows[0]["multiple"] == 1.0
        assert {"pull", "pull, schedule"} <= {row["method"] for row in table.rows}
    assert memory.rows[0]["bytes per parameter"] == 8.0
    assert memory.rows[1]["bytes per parameter"] == pytest.approx(0.5, abs=1e-3)


def test_the_memory_has_two_tensors_per_parameter() -> None:
    size = sum(p.numel() for p in Transformer(8).parameters())
    memory, pulled = pull.extra_bytes()
    assert memory == 8 * size
    assert pulled >= 0
