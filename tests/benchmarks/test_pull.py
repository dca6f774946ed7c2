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
    monkeypatch.setattr(pull, "FISHER_SEQUENCES", 8)
    monkeypatch.setattr(pull, "SEQUENCES", 4)


def test_a_schedule_changes_the_rate_and_a_pull_the_weights() -> None:
    weights = {}
    for pulled in ("eager", None):
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
    assert not torch.equal(weights["eager"], weights[None])


def test_all_ways_are_compared_with_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(p.numel() for p in Transformer(8).parameters())
    monkeypatch.setattr(pull, "in_a_process", lambda what: 8 * size if what == "memory" else 0)
    alone, tensor, training, fisher, memory = pull.tables(ours_only=True)
    for table in (alone, tensor, training, fisher):
        assert table.rows[0]["method"] == "plain"
        assert table.rows[0]["multiple"] == 1.0
    for table in (alone, training):
        assert {"pull", "compiled pull", "compiled pull, schedule"} <= {
            row["method"] for row in table.rows
        }
    assert len(tensor.rows) == 4
    assert {"ewc sampled", "ewc empirical"} < {row["method"] for row in fisher.rows}
    assert [row["bytes per parameter"] for row in memory.rows] == [8.0, 0.0, 0.0, 0.0]


def test_the_memory_has_two_tensors_per_parameter() -> None:
    size = sum(p.numel() for p in Transformer(8).parameters())
    assert pull.extra_bytes("memory") == 8 * size
    assert pull.extra_bytes("pull") >= 0


def test_the_peak_has_what_a_workload_needs_for_a_while() -> None:
    size = 2**26
    assert pull.peak(lambda: torch.ones(size, dtype=torch.uint8).sum()) > 0.9 * size
