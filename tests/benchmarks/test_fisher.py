"""One Fisher is measured against a plain pass, and other libraries are checked before that."""

import pytest
from torch import nn

from benchmarks import fisher
from benchmarks.models import MLP, Case, mlp, mlp_batch
from benchmarks.peers import FisherFunction, batch_of_one

TINY = Case(MLP, mlp, mlp_batch, samples=8, batch_size=4, rounds=1, exact=True)


def test_the_fisher_is_measured_against_a_plain_pass() -> None:
    table = fisher.measure(TINY, ours_only=True)
    assert [(row["method"], row["kind"]) for row in table.rows] == [
        ("plain forward+backward", ""),
        ("ewc", "sampled"),
        ("ewc", "empirical"),
        ("ewc", "exact"),
    ]
    plain = table.rows[0]["milliseconds"]
    for row in table.rows:
        assert row["samples"] == TINY.samples
        assert row["multiple"] == pytest.approx(row["milliseconds"] / plain)


def test_wrong_values_and_failures_of_a_library_are_shown() -> None:
    def doubled(model: nn.Module) -> FisherFunction:
        return lambda batches: {n: 2 * f for n, f in batch_of_one(model)(batches).items()}

    def unable(model: nn.Module) -> FisherFunction:
        raise NotImplementedError("no rule for this layer")

    model, batches = TINY.make()
    peers = {"2x": doubled, "none": unable}
    wrong, failed = fisher.other_libraries(model, batches, "empirical", peers)
    assert wrong.difference == pytest.approx(1.0, rel=1e-4)
    assert wrong.remark.startswith("wrong values for ")
    assert failed.run is None
    assert failed.remark == "fails: NotImplementedError: no rule for this layer"


def test_a_library_timed_on_fewer_samples_is_scaled_up() -> None:
    _, batches = TINY.make()
    candidate = fisher.Candidate("peer", "empirical", None, batches[:1])
    row = fisher.row(candidate, 0.5, batches, plain_time=0.1)
    assert (row["samples"], row["milliseconds"], row["multiple"]) == (4, 1000.0, 10.0)


def test_a_slow_library_is_timed_on_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    _, batches = TINY.make()
    for time, count in ((0.1, 2), (0.5, 2), (0.6, 1), (60.0, 1)):
        monkeypatch.setattr(fisher, "seconds", lambda workload, time=time: time)
        assert len(fisher.batches_per_round(batch_of_one(mlp()), batches)) == count
