"""Every benchmark of speed runs, at its smallest size, and compares like with like."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import __main__ as command
from benchmarks.measure import best_seconds, bytes_in_a_process, library
from benchmarks.speed import fisher, games, kronecker, models, pull, step, training
from benchmarks.speed.models import MLP, TRANSFORMER, Case, Transformer, mlp, mlp_batch
from benchmarks.speed.peers import FisherFunction, Peer, batch_of_one, torch_func
from ewc.fisher import fisher_diagonal
from ewc_paper.games.network import NETWORKS, Architecture, QNetwork

TINY = Case(MLP, mlp, mlp_batch, samples=8, batch_size=4, rounds=1, exact=True)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every benchmark at its smallest; memory is measured in this process."""
    monkeypatch.setattr(command, "one_thread", lambda: None)
    transformer = Case(TRANSFORMER, lambda: Transformer(8), models.transformer_batch, 4, 2, 1)
    sizes: dict[ModuleType, dict[str, object]] = {
        models: {"VOCABULARY": 50},
        fisher: {"CASES": [TINY, transformer], "MEMORY_BATCH_SIZE": 2},
        step: {"TASKS": (1, 2), "STEPS": 1, "ROUNDS": 1},
        pull: {"WIDTH": 8, "SEQUENCES": 4, "FISHER_SEQUENCES": 8},
        kronecker: {"TASKS": (1, 2), "UNITS": 8, "WIDTH": 8, "SAMPLES": 8, "FACTOR_SEQUENCES": 8},
        training: {"SAMPLES": 256, "ROUNDS": 1},
        games: {"STEPS": 16, "WARM_UP": 16, "ROUNDS": 1, "CALLS": 1, "UPDATE_ROUNDS": 1},
    }
    sizes[pull] |= {"ROUNDS": 1, "TRAINING_ROUNDS": 1, "FISHER_ROUNDS": 1}
    sizes[kronecker] |= {"ROUNDS": 1, "TRAINING_ROUNDS": 1, "FACTOR_ROUNDS": 1, "SEQUENCES": 4}
    sizes[games]["COMMON"] = {**games.COMMON, "min_history": 8, "environments": 2}
    for module, values in sizes.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)
    for network in ("nature", "paper"):
        monkeypatch.setitem(NETWORKS, network, NETWORKS["small"])
    for module in (fisher, pull):
        monkeypatch.setattr(module, "bytes_in_a_process", lambda _, what: here(what))

    def here(what: str) -> int:
        return (pull if what in pull.MEASURED else fisher).extra_bytes(what)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", command.BENCHMARKS)
def test_a_benchmark_prints_and_stores_what_it_measured(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command.main([name, "--ours", "--json", str(tmp_path / "results.json")])
    printed = capsys.readouterr().out
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["machine"]["torch"] == torch.__version__
    for table in stored["tables"]:
        assert table["title"] in printed.replace("\n", " ")
        assert len(table["rows"]) > 1
        first = table["rows"][0]
        if "multiple" in first and name != "update":
            assert first["multiple"] == 1.0
        for row in table["rows"]:
            assert row.keys() == first.keys()
            measured = [row.get(key, 1) for key in ("milliseconds", "samples per second")]
            assert name == "update" or min(measured) > 0


@pytest.mark.parametrize(
    ("arguments", "said"), [(["fischer"], "got fischer"), (["fisher"], "opacus is not installed")]
)
def test_what_cannot_be_measured_is_one_line(
    arguments: list[str],
    said: str,
    small: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    monkeypatch.setattr(fisher, "EMPIRICAL", {"Opacus": lambda model: library("opacus")})
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_workloads_take_turns_until_their_limit() -> None:
    turns = []

    def workload(name: str, size: int) -> Callable[[], object]:
        return lambda: (turns.append(name), sum(range(size)))

    workloads = {"slow": workload("slow", 10**6), "fast": workload("fast", 1)}
    best = best_seconds(workloads, rounds=4, limits={"slow": 1e-6})
    assert turns == ["slow", "fast", "fast", "fast", "fast"]
    assert 0 <= best["fast"] < best["slow"]
    with pytest.raises(ValueError, match="rounds >= 1, got 0"):
        best_seconds(workloads, rounds=0)


@pytest.mark.parametrize("peer", [batch_of_one, torch_func])
def test_peers_of_torch_alone_agree_with_ours(peer: Peer) -> None:
    model, batches = TINY.make()
    ours = fisher_diagonal(model, batches, kind="empirical")
    _, difference = fisher.largest_difference(peer(model)(batches), ours)
    assert difference < 1e-5


def test_wrong_values_and_failures_of_a_library_are_shown() -> None:
    def doubled(model: nn.Module) -> FisherFunction:
        return lambda batches: {n: 2 * f for n, f in batch_of_one(model)(batches).items()}

    def unable(model: nn.Module) -> FisherFunction:
        raise NotImplementedError("no rule for this layer")

    model, batches = TINY.make()
    wrong, failed = fisher.other_libraries(
        model, batches, "empirical", {"2x": doubled, "none": unable}
    )
    assert wrong.difference == pytest.approx(1.0, rel=1e-4)
    assert wrong.remark.startswith("wrong values for ")
    assert failed.run is None
    assert failed.remark == "fails: NotImplementedError: no rule for this layer"


def test_the_transformer_is_tied_and_causal() -> None:
    model = Transformer()
    assert model.head.weight is model.tokens.weight
    tokens, _ = models.transformer_batch(1)
    changed = tokens.clone()
    changed[0, 64] = (changed[0, 64] + 1) % models.VOCABULARY
    with torch.no_grad():
        same = torch.isclose(model(tokens), model(changed), atol=1e-6).all(-1)[0]
    assert same[:64].all()
    assert not same[64]


def test_loss_terms_and_the_memory_have_the_same_penalty() -> None:
    wells = step.random_wells(3)
    step.check(step.loss_terms(wells), wells)
    with pytest.raises(AssertionError):
        step.check(step.loss_terms(wells[:2]), wells)


def test_what_is_timed_with_the_pull_is_pulled() -> None:
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


def test_the_memory_has_two_tensors_per_parameter() -> None:
    """8.00 bytes per parameter, as the page says, measured in a process of its own."""
    size = sum(p.numel() for p in pull.make_model().parameters())
    assert bytes_in_a_process("benchmarks.speed.pull", "memory") == 8 * size


def test_the_peak_has_what_a_workload_needs_for_a_while() -> None:
    size = 2**26
    assert pull.peak(lambda: torch.ones(size, dtype=torch.uint8).sum()) > 0.9 * size


def test_the_share_of_matrix_products_is_a_fraction() -> None:
    matrix = torch.rand(64, 64)
    assert 0 < training.matrix_share(lambda: matrix @ matrix) <= 1
    assert training.matrix_share(lambda: matrix + matrix) == 0


def test_the_kernels_of_an_update_take_the_operations_that_are_counted_for_them() -> None:
    small = Architecture(((2, 8, 4), (3, 4, 2)), 5)
    state = (games.CHANNELS, games.SIDE, games.SIDE)
    network = QNetwork(small, state, games.ACTIONS, seed=0)
    network.add_context()
    with FlopCounterMode(display=False) as counter:
        network(torch.rand(games.BATCH, *state)).sum().backward()
    kernels = list(games.update_kernels(small, forwards=1))
    assert sum(kernel.operations for kernel in kernels) == counter.get_total_flops()
    for kernel in games.update_kernels(small, forwards=2):
        with FlopCounterMode(display=False) as counter:
            kernel.call()
        assert counter.get_total_flops() == kernel.operations, kernel.name
        assert kernel.times == (2 if "forward" in kernel.name else 1)
