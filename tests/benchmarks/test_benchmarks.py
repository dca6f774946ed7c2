"""The benchmarks measure what they say, on counts small enough for a test."""

import importlib
import json
import time
from functools import partial

import pytest
import torch
from torch import nn

import ewc.fisher
from benchmarks import __main__ as command
from benchmarks import fisher, step
from benchmarks.libraries import MissingLibrary, library
from benchmarks.models import MLP, Case, Transformer, mlp, mlp_batch, transformer_batch
from benchmarks.peers import batch_of_one, torch_func
from benchmarks.timing import best_seconds, ratios

TINY = Case(MLP, mlp, mlp_batch, samples=8, batch_size=4, rounds=1, exact=True)


class Clock:
    """A clock that goes on only when something naps."""

    now = 0.0

    def nap(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


def test_ways_take_turns_and_the_best_round_counts(clock) -> None:
    naps = {"short": iter([3.0, 1.0, 2.0]), "long": iter([6.0, 8.0, 4.0])}
    turns = []

    def way(name: str) -> None:
        turns.append(name)
        clock.nap(next(naps[name]))

    best = best_seconds({name: partial(way, name) for name in naps}, rounds=3)
    assert turns == ["short", "long"] * 3
    assert best == {"short": 1.0, "long": 4.0}


def test_a_way_that_has_had_its_time_sits_out(clock) -> None:
    turns = []

    def way(name: str, seconds: float) -> None:
        turns.append(name)
        clock.nap(seconds)

    ways = {"slow": partial(way, "slow", 2.0), "fast": partial(way, "fast", 0.5)}
    best_seconds(ways, rounds=5, limits={"slow": 3.0})
    assert (turns.count("slow"), turns.count("fast")) == (2, 5)


def test_no_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="rounds >= 1, got 0"):
        best_seconds({"way": lambda: None}, rounds=0)


def test_ratios_are_to_the_first() -> None:
    assert ratios({"plain": 2.0, "fisher": 3.0}) == {"plain": 1.0, "fisher": 1.5}


def test_the_fisher_is_measured_beside_a_plain_pass() -> None:
    table = fisher.measure(TINY, ours_only=True)
    assert [(row["way"], row["kind"]) for row in table.rows] == [
        ("plain forward+backward", ""),
        ("ewc", "sampled"),
        ("ewc", "empirical"),
        ("ewc", "exact"),
    ]
    plain = table.rows[0]["milliseconds"]
    for row in table.rows:
        assert row["samples"] == TINY.samples
        assert row["multiple"] == pytest.approx(row["milliseconds"] / plain)


@pytest.mark.parametrize("peer", [batch_of_one, torch_func])
def test_peers_of_torch_alone_agree_with_ours(peer) -> None:
    model, batches = TINY.make()
    ours = ewc.fisher.fisher_diagonal(model, batches, kind="empirical")
    _, difference = fisher.largest_difference(peer(model)(batches), ours)
    assert difference < 1e-5


def test_wrong_values_and_failures_of_a_peer_are_shown() -> None:
    def doubled(model: nn.Module):
        return lambda batches: {n: 2 * f for n, f in batch_of_one(model)(batches).items()}

    def unable(model: nn.Module):
        raise NotImplementedError("no rule for this layer")

    model, batches = TINY.make()
    wrong, cannot = fisher.others(model, batches, "empirical", {"2x": doubled, "none": unable})
    assert wrong.difference == pytest.approx(1.0, rel=1e-4)
    assert wrong.remark.startswith("wrong values for ")
    assert cannot.run is None
    assert cannot.remark == "cannot: NotImplementedError: no rule for this layer"


def test_a_peer_timed_on_fewer_samples_is_scaled_up() -> None:
    _, batches = TINY.make()
    way = fisher.Way("peer", "empirical", None, batches[:1])
    row = fisher.row(way, 0.5, batches, plain_time=0.1)
    assert (row["samples"], row["milliseconds"], row["multiple"]) == (4, 1000.0, 10.0)


def test_the_transformer_is_tied_and_causal() -> None:
    model = Transformer()
    assert model.head.weight is model.tokens.weight
    tokens, _ = transformer_batch(1)
    changed = tokens.clone()
    changed[0, 64] = (changed[0, 64] + 1) % 50257
    with torch.no_grad():
        same = torch.isclose(model(tokens), model(changed), atol=1e-6).all(-1)[0]
    assert same[:64].all()
    assert not same[64]


def test_loss_terms_and_the_memory_hold_alike() -> None:
    wells = step.random_wells(3)
    step.check(step.loss_terms(wells), wells)
    with pytest.raises(AssertionError):
        step.check(step.loss_terms(wells[:2]), wells)


def test_a_missing_library_names_make_bench(monkeypatch) -> None:
    def missing(name: str):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingLibrary, match=r"^opacus is not installed: `make bench`"):
        library("opacus")


def test_numbers_are_stored_as_json(tmp_path, monkeypatch, capsys) -> None:
    def tables(*, ours_only: bool):
        yield fisher.measure(TINY, ours_only=ours_only)

    monkeypatch.setitem(command.BENCHMARKS, "fisher", tables)
    monkeypatch.setattr(command, "one_thread", lambda: None)
    command.main(["fisher", "--ours", "--json", str(tmp_path / "numbers.json")])
    stored = json.loads((tmp_path / "numbers.json").read_text())
    assert stored["machine"]["torch"] == torch.__version__
    assert stored["tables"][0]["rows"][1]["kind"] == "sampled"
    assert "MLP 784-400-400-10" in capsys.readouterr().out


def test_an_unknown_benchmark_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        command.main(["fischer"])
    assert "got fischer" in capsys.readouterr().err
