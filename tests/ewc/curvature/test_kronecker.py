"""What tasks leave behind as Kronecker factors, and how they add up, as the equations have it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.kronecker import random_fisher, spd
from support.memory import make_batches, make_model, move, weights
from torch import Tensor, nn

import ewc
import ewc.curvature.kronecker
from ewc.curvature.kronecker import Factor, Layer, added, check_factors, layers_of
from ewc.curvature.wells import Well, add, well_at
from ewc.fisher import KroneckerFactors, KroneckerFisher
from ewc.strength import AUTO_DISTANCE_OF_LAYERS

pytestmark = pytest.mark.filterwarnings("ignore:the weights moved since the last consolidate")
Task = tuple[KroneckerFisher, dict[str, Tensor]]


def joined(tensors: Any, name: str, own: KroneckerFactors) -> Tensor:
    """(W, b) of a layer as one matrix."""
    weight = tensors[name]
    matrix = weight.t() if own.inputs_first else weight.flatten(1)
    return matrix if own.bias is None else torch.cat([matrix, tensors[own.bias].unsqueeze(1)], 1)


def written_out(
    model: nn.Module, tasks: list[Task], strength: float = 1.0, decay: float = 1.0
) -> Tensor:
    """(λ/2) [Σ_layers vec(Δ)ᵀ ((Σ γ G_t) ⊗ (Σ γ A_t) / Σ γ) vec(Δ) + Σ_i (Σ γ F_ti) Δ_i²].

    Δ is the distance from the weights of the last task, and γ is `decay` to the age of the task.
    """
    now, (last, center) = dict(model.named_parameters()), tasks[-1]
    shares = [decay**age for age in reversed(range(len(tasks)))]
    total = torch.zeros((), dtype=torch.float64)
    for name, own in last.factors.items():
        a = sum(
            s * fisher.factors[name].inputs for s, (fisher, _) in zip(shares, tasks, strict=True)
        )
        g = sum(
            s * fisher.factors[name].outputs for s, (fisher, _) in zip(shares, tasks, strict=True)
        )
        distance = (joined(now, name, own) - joined(center, name, own)).flatten()
        total = total + distance @ torch.kron(g, a) @ distance / sum(shares)
    for name in last.diagonal:
        f = sum(s * fisher.diagonal[name] for s, (fisher, _) in zip(shares, tasks, strict=True))
        total = total + (f * (now[name] - center[name]).square()).sum()
    return strength / 2 * total


def assert_same_pull(model: nn.Module, penalty: Tensor, expected: Tensor) -> None:
    parameters = [p for p in model.parameters() if p.requires_grad]
    torch.testing.assert_close(penalty, expected, rtol=1e-9, atol=1e-12)
    grads = [
        torch.autograd.grad(one, parameters, allow_unused=True, materialize_grads=True)
        for one in (penalty, expected)
    ]
    torch.testing.assert_close(*grads, rtol=1e-9, atol=1e-11)


def make_memory(model: nn.Module, **options: Any) -> ewc.EWC:
    return ewc.EWC(model, **{"strength": 3.0, "curvature": "kronecker", **options})


def learn(memory: ewc.EWC, model: nn.Module, seed: int, task: str | None = None) -> Task:
    """Move somewhere, and remember that with random factors."""
    move(model, seed)
    fisher = random_fisher(model, seed)
    memory.consolidate(fisher, task=task)
    return fisher, weights(model)


@pytest.mark.parametrize("decay", [1.0, 0.7, 0.0])
def test_the_penalty_is_the_product_of_the_sums_around_the_last_weights(decay: float) -> None:
    model = make_model()
    memory = make_memory(model, decay=decay)
    tasks = []
    for seed in range(1, 5):
        tasks.append(learn(memory, model, seed))
        assert float(memory.penalty().detach()) == pytest.approx(0.0, abs=1e-20)
        move(model, 100 + seed)
        assert_same_pull(model, memory.penalty(), written_out(model, tasks, 3.0, decay))


def test_the_gradient_of_the_penalty_is_right() -> None:
    model = make_model()
    memory = make_memory(model)
    for seed in range(2):
        learn(memory, model, seed)
    move(model, 7)
    parameters = dict(model.named_parameters())

    def penalty(*tensors: Tensor) -> Tensor:
        state = memory._pull_state()
        moved = dict(zip(parameters, tensors, strict=True))
        return state._replace(parameters=moved).penalty()

    assert torch.autograd.gradcheck(penalty, tuple(parameters.values()))


def test_consolidation_of_batches_takes_their_factors() -> None:
    model = make_model()
    memory = make_memory(model)
    tasks = []
    for seed in (1, 2):
        move(model, seed)
        fisher = memory.consolidate(make_batches(seed), kind="empirical")
        assert isinstance(fisher, KroneckerFisher)
        expected = ewc.fisher_kronecker(model, make_batches(seed), kind="empirical")
        for name, own in expected.factors.items():
            assert torch.equal(fisher.factors[name].inputs, own.inputs)
            assert torch.equal(fisher.factors[name].outputs, own.outputs)
        tasks.append((fisher, weights(model)))
    move(model, 3)
    assert_same_pull(model, memory.penalty(), written_out(model, tasks, 3.0))
    assert memory.tasks == ("task 1", "task 2")
    assert "curvature='kronecker'" in repr(memory)


class Mixed(nn.Module):
    """A convolution, a norm, a layer that is stored transposed, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 2)
        self.norm = nn.LayerNorm(3)
        self.w = nn.Parameter(torch.randn(3, 4))
        self.b = nn.Parameter(torch.randn(4))
        self.head = nn.Linear(4, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.conv(x).mean((2, 3))).tanh()
        return self.head(torch.addmm(self.b, hidden, self.w).tanh())


def test_layers_of_every_kind_and_a_diagonal_together() -> None:
    torch.manual_seed(0)
    model = Mixed().double()
    memory = make_memory(model)
    tasks = []
    for seed in (1, 2):
        move(model, seed)
        batches = [torch.randn(4, 2, 3, 3, dtype=torch.float64)]
        tasks.append((memory.consolidate(batches), weights(model)))
    fisher = tasks[0][0]
    assert {n: own.bias for n, own in fisher.factors.items()} == {
        "conv.weight": "conv.bias", "w": "b", "head.weight": None,
    }  # fmt: skip
    assert fisher.diagonal.keys() == {"norm.weight", "norm.bias"}
    move(model, 3)
    assert_same_pull(model, memory.penalty(), written_out(model, tasks, 3.0))


def test_floor_and_normalize_shape_the_whole_fisher() -> None:
    model = make_model()
    memory = make_memory(model, strength=1.0)
    fisher = random_fisher(model, 1, layers=["body.weight"])
    memory.consolidate(fisher, floor=0.1, normalize=5.0)
    own = fisher.factors["body.weight"]
    identity = torch.eye(5 * 5, dtype=torch.float64)
    block = own.block() + 0.1 * own.block().diagonal().mean() * identity
    rest = {name: f + 0.1 * f.mean() for name, f in fisher.diagonal.items()}
    scale = 5.0 / float(block.trace() + sum(f.sum() for f in rest.values()))
    center = weights(model)
    move(model, 2)
    now = dict(model.named_parameters())
    distance = (joined(now, "body.weight", own) - joined(center, "body.weight", own)).flatten()
    expected = distance @ block @ distance
    for name, f in rest.items():
        expected = expected + (f * (now[name] - center[name]).square()).sum()
    assert_same_pull(model, memory.penalty(), expected * scale / 2)
    total = sum(float(f.sum()) for f in memory._wells.total.diagonals().values())
    assert total == pytest.approx(5.0)


def test_a_uniform_well_beside_factors_adds_to_them() -> None:
    model = make_model()
    memory = make_memory(model)
    memory.anchor(0.5, task="L2")
    task = learn(memory, model, 1)
    center = weights(model)
    move(model, 2)
    squares = sum((p - center[n]).square().sum() for n, p in model.named_parameters())
    expected = written_out(model, [task], 3.0) + 3.0 / 2 * 0.5 * squares
    assert_same_pull(model, memory.penalty(), expected)


# Tasks that are kept


def test_left_out_forgotten_and_replaced_tasks_leave_the_sums_of_the_others() -> None:
    model = make_model()
    memory = make_memory(model, keep_tasks=True)
    tasks = {name: learn(memory, model, seed, name) for seed, name in enumerate("ABC")}
    move(model, 9)

    def expect(names: str) -> None:
        assert_same_pull(
            model, memory.penalty(), written_out(model, [tasks[n] for n in names], 3.0)
        )

    expect("ABC")
    with memory.without("A"):
        expect("BC")
        with memory.without("C"):
            expect("B")
        expect("BC")
    expect("ABC")
    with memory.without("A", "B", "C"):
        assert float(memory.penalty()) == 0.0
    tasks["A"] = learn(memory, model, 11, "A")  # now the last one
    move(model, 12)
    assert memory.tasks == ("B", "C", "A")
    expect("BCA")
    memory.forget("C")
    expect("BA")
    memory.forget("A")
    expect("B")
    memory.forget("B")
    assert memory.tasks == ()
    assert float(memory.penalty()) == 0.0


def test_the_memory_does_not_grow_with_the_tasks() -> None:
    model = make_model()
    memory = make_memory(model)
    learn(memory, model, 0)
    first = sum(t.numel() for k, t in memory.state_dict().items() if k != "values")
    for seed in range(1, 6):
        learn(memory, model, seed)
    assert sum(t.numel() for k, t in memory.state_dict().items() if k != "values") == first


def test_the_estimated_rise_is_the_mean_energy_and_the_budget_a_share_of_the_weights() -> None:
    model = make_model()
    memory = make_memory(model, strength=None, budget="auto")
    tasks = [learn(memory, model, seed) for seed in (1, 2)]
    center = weights(model)
    move(model, 3)
    expected = float(written_out(model, tasks).detach()) / 2
    assert memory.estimated_rise() == pytest.approx(expected)
    zero = make_model()
    with torch.no_grad():
        for p in zero.parameters():
            p.zero_()
    at_zero = float(written_out(zero, [(f, center) for f, _ in tasks]).detach()) / 2
    assert memory.allowed_rise() == pytest.approx(AUTO_DISTANCE_OF_LAYERS**2 * at_zero)


# Growing


def embedded(fisher: KroneckerFisher, outputs: int) -> KroneckerFisher:
    """The same Fisher for a head with more outputs: nothing is known of the new ones."""
    own = fisher.factors["head.weight"]
    larger = own.outputs.new_zeros(outputs, outputs)
    larger[: len(own.outputs), : len(own.outputs)] = own.outputs
    factors = {**fisher.factors, "head.weight": KroneckerFactors(own.inputs, larger, own.bias)}
    return KroneckerFisher(factors, fisher.diagonal)


def grow(model: nn.Module, outputs: int) -> None:
    old = model.head
    model.head = nn.Linear(old.in_features, outputs).double()
    with torch.no_grad():
        model.head.weight[: old.out_features] = old.weight
        model.head.bias[: old.out_features] = old.bias


def test_a_head_that_grows_is_held_on_its_old_rows_and_free_on_the_new() -> None:
    model = make_model()
    memory = make_memory(model, keep_tasks=True)
    first = learn(memory, model, 1, "A")
    grow(model, 5)
    center = {n: t.clone() for n, t in weights(model).items()}
    first = (embedded(first[0], 5), center)
    with torch.no_grad():
        model.head.weight[3:] += 7.0
        model.head.bias[3:] -= 7.0
    assert float(memory.penalty()) == pytest.approx(0.0, abs=1e-18)
    move(model, 2)
    assert_same_pull(model, memory.penalty(), written_out(model, [first], 3.0))
    second = learn(memory, model, 3, "B")
    move(model, 4)
    assert_same_pull(model, memory.penalty(), written_out(model, [first, second], 3.0))
    with memory.without("B"):
        assert_same_pull(model, memory.penalty(), written_out(model, [first], 3.0))


def test_more_inputs_keep_the_bias_last() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2)).double()
    memory = make_memory(model)
    fisher, center = learn(memory, model, 1)
    own = fisher.factors["0.weight"]
    wider = nn.Linear(5, 2).double()
    with torch.no_grad():
        wider.weight[:, :3], wider.bias[:] = model[0].weight, model[0].bias
    model[0] = wider
    at = [0, 1, 2, 5]
    inputs = torch.zeros(6, 6, dtype=torch.float64)
    inputs[torch.tensor(at).unsqueeze(1), torch.tensor(at)] = own.inputs
    larger = KroneckerFisher({"0.weight": KroneckerFactors(inputs, own.outputs, "0.bias")}, {})
    center = weights(model)
    move(model, 2)
    assert_same_pull(model, memory.penalty(), written_out(model, [(larger, center)], 3.0))


def test_a_convolution_that_gains_channels_is_held_on_the_old_ones() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 2)).double()
    memory = make_memory(model)
    fisher, _ = learn(memory, model, 1)
    own = fisher.factors["0.weight"]
    wider = nn.Conv2d(4, 5, 2).double()
    with torch.no_grad():
        wider.weight[:3, :2], wider.bias[:3] = model[0].weight, model[0].bias
    model[0] = wider
    at = torch.tensor([*range(2 * 4), 4 * 4])
    inputs = torch.zeros(17, 17, dtype=torch.float64)
    inputs[at.unsqueeze(1), at] = own.inputs
    outputs = torch.zeros(5, 5, dtype=torch.float64)
    outputs[:3, :3] = own.outputs
    larger = KroneckerFisher({"0.weight": KroneckerFactors(inputs, outputs, "0.bias")}, {})
    center = weights(model)
    move(model, 2)
    assert_same_pull(model, memory.penalty(), written_out(model, [(larger, center)], 3.0))


def test_a_kernel_of_another_size_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 2)).double()
    memory = make_memory(model)
    learn(memory, model, 1)
    model[0] = nn.Conv2d(2, 3, 3).double()
    with pytest.raises(ValueError, match=r"the kernel of '0.weight' to keep its size"):
        memory.penalty()


def test_a_layer_that_shrank_or_vanished_is_refused_and_nothing_changes() -> None:
    model = make_model()
    memory = make_memory(model)
    learn(memory, model, 1)
    head = model.head
    model.head = nn.Linear(5, 2).double()
    with pytest.raises(ValueError, match=r"'head.weight' to keep or gain rows"):
        memory.penalty()
    model.head = nn.Identity()
    with pytest.raises(ValueError, match=r"'head.weight', which the model no longer has"):
        memory.penalty()
    model.head = head
    assert float(memory.penalty()) == pytest.approx(0.0, abs=1e-20)


# What is refused


def test_options_that_do_not_go_together_are_refused() -> None:
    model = make_model()
    with pytest.raises(ValueError, match="curvature='diagonal' or 'kronecker', got 'full'"):
        ewc.EWC(model, curvature="full")
    with pytest.raises(ValueError, match="center='latest' or 'each', got 'mean'"):
        ewc.EWC(model, center="mean")
    with pytest.raises(ValueError, match="one center for all tasks"):
        ewc.EWC(model, curvature="kronecker", center="each")
    assert ewc.EWC(model, curvature="kronecker").center == "latest"
    assert ewc.EWC(model, curvature="kronecker", center="latest").curvature == "kronecker"
    assert (ewc.EWC(model).center, ewc.EWC(model).curvature) == ("each", "diagonal")


def test_factors_for_a_diagonal_memory_are_refused() -> None:
    model = make_model()
    memory = ewc.EWC(model, strength=1.0)
    with pytest.raises(ValueError, match="curvature='kronecker'"):
        memory.consolidate(random_fisher(model, 1))
    assert memory.tasks == ()


def changed(fisher: KroneckerFisher, **entries: Any) -> KroneckerFisher:
    own = fisher.factors["body.weight"]
    fields = {"inputs": own.inputs, "outputs": own.outputs, "bias": own.bias, **entries}
    return KroneckerFisher({**fisher.factors, "body.weight": KroneckerFactors(**fields)}, {})


def test_factors_that_do_not_fit_are_refused_and_nothing_changes() -> None:
    model = make_model()
    memory = make_memory(model)
    fisher = random_fisher(model, 1)
    asymmetric = fisher.factors["body.weight"].inputs.clone()
    asymmetric[0, 1] += 1.0
    wrong = {
        "shape": changed(fisher, inputs=spd(4)),
        "got .4, 4.": changed(fisher, outputs=spd(4)),
        "symmetric": changed(fisher, inputs=asymmetric),
        "finite": changed(fisher, outputs=torch.full((5, 5), torch.nan)),
        "body.bias": changed(fisher, bias=None, inputs=spd(4)),
        "head.weight": KroneckerFisher({"body.weight": fisher.factors["body.weight"]}, {}),
    }
    for message, one in wrong.items():
        with pytest.raises(ValueError, match=message):
            memory.consolidate(one)
    with pytest.raises(ValueError, match="has no effect on a ready Fisher"):
        memory.consolidate(fisher, kind="sampled")
    assert memory.tasks == ()
    with torch.no_grad():
        model.body.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"expected finite weights, but 'body.weight'"):
        memory.consolidate(fisher)
    assert memory.tasks == ()


def test_factors_with_a_negative_diagonal_are_refused() -> None:
    """They are no second moments: their eigenvalues below 0 would be taken for 0."""
    model = make_model()
    fisher = random_fisher(model, 1)
    with pytest.raises(ValueError, match=r"diagonal >= 0 for 'body.weight'"):
        check_factors(changed(fisher, inputs=-spd(5)), dict(model.named_parameters()))


def test_a_layer_that_is_used_in_another_way_than_before_is_refused() -> None:
    model = make_model()
    memory = make_memory(model)
    learn(memory, model, 1)
    before = memory.state_dict()
    fisher = random_fisher(model, 2)
    own = fisher.factors["body.weight"]
    other = changed(fisher, bias=None, inputs=own.inputs[:-1, :-1])
    other = KroneckerFisher(other.factors, {"body.bias": torch.ones(5).double()})
    with pytest.raises(ValueError, match=r"'body.weight' is used in another way"):
        memory.consolidate(other)
    after = memory.state_dict()
    assert memory.tasks == ("task 1",)
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())


def test_frozen_layers_are_not_protected() -> None:
    model = make_model()
    model.body.requires_grad_(False)
    memory = make_memory(model)
    fisher = memory.consolidate(make_batches(1))
    assert list(fisher.factors) == ["head.weight"]
    with torch.no_grad():
        model.body.weight += 1.0
    assert float(memory.penalty()) == pytest.approx(0.0, abs=1e-20)


# The parts


def test_a_decomposed_factor_is_the_same_matrix() -> None:
    matrix = spd(6)
    factor = Factor(matrix)
    for one in (factor, factor.decomposed(), factor.decomposed().decomposed()):
        torch.testing.assert_close(one.full(), matrix)
        torch.testing.assert_close(one.diagonal(), matrix.diagonal())
        torch.testing.assert_close(one.scaled(0.3).full(), 0.3 * matrix)
    assert (Factor(-matrix).decomposed().values == 0).all()


def test_a_cut_factor_keeps_the_largest_eigenvalues_and_the_mean_of_the_others() -> None:
    torch.manual_seed(0)
    matrix = spd(6)
    values, vectors = torch.linalg.eigh(matrix)
    values[:4] = values[:4].mean()
    expected = vectors * values @ vectors.t()
    factor = Factor(matrix).decomposed(2)
    assert tuple(factor.matrix.shape) == (6, 2)
    torch.testing.assert_close(factor.full(), expected)
    torch.testing.assert_close(factor.diagonal(), expected.diagonal())
    torch.testing.assert_close(factor.full().trace(), matrix.trace())
    torch.testing.assert_close(factor.scaled(0.3).full(), 0.3 * expected)
    # Rows that a layer gains are free: they do not get the mean of the others.
    grown = factor.grown(8, keep_last=True).full()
    at = torch.tensor([0, 1, 2, 3, 4, 7])
    torch.testing.assert_close(grown[at.unsqueeze(1), at], expected)
    assert grown[5:7].abs().max() < 1e-14


@pytest.mark.parametrize("kept", [(4, 5), (2, 5), (4, 3), (2, 3), (1, 1)])
def test_a_layer_with_cut_factors_is_the_product_of_their_matrices(kept: tuple[int, int]) -> None:
    torch.manual_seed(1)
    outputs, inputs = Factor(spd(4)).decomposed(kept[0]), Factor(spd(5)).decomposed(kept[1])
    layer = Layer(inputs, outputs, tasks=3.0, ridge=0.2)
    product = torch.kron(outputs.full(), inputs.full()) / 3
    whole = product + 0.2 * torch.eye(20, dtype=torch.float64)
    delta = torch.randn(4, 5, dtype=torch.float64)
    torch.testing.assert_close(layer.energy(delta), delta.flatten() @ whole @ delta.flatten())
    torch.testing.assert_close(layer.gradient(delta).flatten(), whole @ delta.flatten())
    inverse = torch.linalg.inv(torch.eye(20, dtype=torch.float64) + 7 * whole)
    found = layer.apply(lambda precision: 1 / (1 + 7 * precision), delta)
    torch.testing.assert_close(found.flatten(), inverse @ delta.flatten())
    assert layer.largest() == pytest.approx(float(torch.linalg.eigvalsh(whole).max()))
    diagonals = layer.diagonals("weight")["weight"]
    torch.testing.assert_close(diagonals.flatten(), whole.diagonal())


def test_tasks_of_cut_factors_add_up_and_are_saved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ewc.curvature.kronecker, "LEADING", 2)
    model = make_model()
    memory = make_memory(model)
    (first, _), (second, center) = (learn(memory, model, seed) for seed in (1, 2))

    def total(name: str, part: str) -> Tensor:
        before = Factor(getattr(first.factors[name], part)).decomposed().full()
        return Factor(before + getattr(second.factors[name], part)).decomposed().full()

    factors = {
        name: replace(own, inputs=total(name, "inputs") / 2, outputs=total(name, "outputs"))
        for name, own in second.factors.items()
    }
    diagonal = {name: first.diagonal[name] + f for name, f in second.diagonal.items()}
    move(model, 3)
    expected = written_out(model, [(KroneckerFisher(factors, diagonal), center)], 3.0)
    assert_same_pull(model, memory.penalty(), expected)

    restored = make_memory(model)
    restored.load_state_dict(memory.state_dict())
    assert torch.equal(restored.penalty(), memory.penalty())
    memory.save(tmp_path / "memory.safetensors", precision="bfloat16")
    loaded = ewc.EWC.load(tmp_path / "memory.safetensors", model)
    assert float(loaded.penalty()) == pytest.approx(float(expected), rel=0.02)


def test_adding_layers_adds_factors_ridges_and_tasks() -> None:
    first, second = (
        Layer(Factor(spd(3)), Factor(spd(2)), tasks=t, ridge=r) for t, r in ((1.0, 0.1), (2.0, 0.2))
    )
    total = added(first.decomposed(), second)
    torch.testing.assert_close(total.inputs.full(), first.inputs.full() + second.inputs.full())
    assert (total.tasks, total.ridge) == (3.0, pytest.approx(0.3))
    whole = torch.kron(total.outputs.full(), total.inputs.full()) / 3 + 0.3 * torch.eye(6)
    delta = torch.randn(2, 3, dtype=torch.float64)
    energy = total.decomposed().energy(delta)
    torch.testing.assert_close(energy, delta.flatten() @ whole @ delta.flatten())
    gradient = total.decomposed().gradient(delta)
    torch.testing.assert_close(gradient.flatten(), whole @ delta.flatten())


def test_layers_of_a_fisher_copy_it() -> None:
    fisher = random_fisher(make_model(), 1)
    layers, _ = layers_of(fisher)
    fisher.factors["body.weight"].inputs.zero_()
    fisher.factors["body.weight"].outputs.zero_()
    assert float(layers["body.weight"].inputs.matrix.trace()) > 0
    assert float(layers["body.weight"].outputs.matrix.trace()) > 0


# One center with a diagonal


@pytest.mark.parametrize("center", ["latest", "each"])
def test_a_diagonal_around_one_center_or_around_each_of_its_own(center: str) -> None:
    model = make_model()
    memory = ewc.EWC(model, strength=3.0, center=center, keep_tasks=True)
    tasks = {}
    for seed, name in enumerate("ABC"):
        move(model, seed)
        tasks[name] = (memory.consolidate(make_batches(seed), task=name), weights(model))
    move(model, 9)

    def expect(names: str) -> None:
        last = tasks[names[-1]][1]
        expected = sum(
            3.0 / 2 * (f[n] * (p - (own if center == "each" else last)[n]).square()).sum()
            for f, own in (tasks[name] for name in names)
            for n, p in model.named_parameters()
        )
        assert_same_pull(model, memory.penalty(), expected)

    expect("ABC")
    with memory.without("C"):
        expect("AB")
    memory.forget("B")
    expect("AC")
    assert memory.center == center
    other = ewc.EWC(model, strength=1.0, keep_tasks=True)
    other.load_state_dict(memory.state_dict())
    assert other.center == center
    assert torch.equal(other.penalty(), memory.penalty())


def test_each_center_is_the_default_and_bit_for_bit_what_it_was() -> None:
    """The wells of the sum are as `add` gives them, with no layer among them."""
    model = make_model()
    memories = [ewc.EWC(model, strength=3.0), ewc.EWC(model, strength=3.0, center="each")]
    total = Well()
    for seed in range(3):
        move(model, seed)
        fisher = ewc.fisher_diagonal(model, make_batches(seed))
        for memory in memories:
            memory.consolidate(fisher)
        total = add(total, well_at(dict(model.named_parameters()), fisher))
    for memory in memories:
        found = memory._wells.total
        assert found.offset == total.offset
        assert not found.layers
        for field in ("precision", "anchor", "remainder"):
            own, expected = getattr(found, field), getattr(total, field)
            assert own.keys() == expected.keys()
            assert all(torch.equal(own[name], expected[name]) for name in own)


def test_a_state_of_an_older_format_says_that_another_version_reads_it() -> None:
    memory = ewc.EWC(make_model(), strength=1.0)
    state = memory.state_dict()
    values = json.loads(bytes(state["values"].tolist())) | {"format": 4}
    state["values"] = torch.tensor(list(json.dumps(values).encode()), dtype=torch.uint8)
    with pytest.raises(ValueError, match="expected a state of format 5, got 4"):
        memory.load_state_dict(state)


def test_where_lapack_gives_up_in_float32_eigenvectors_are_found_in_float64(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it does with some matrices of units that are dead, in some versions."""
    whole = torch.linalg.eigh

    def gives_up(matrix: Tensor) -> Any:
        if matrix.dtype == torch.float32:
            raise torch.linalg.LinAlgError("The algorithm failed to converge")
        return whole(matrix)

    matrix = spd(6).float()
    matrix[2], matrix[:, 2] = 0.0, 0.0
    monkeypatch.setattr(torch.linalg, "eigh", gives_up)
    found = Factor(matrix).decomposed()
    assert found.matrix.dtype == torch.float32
    torch.testing.assert_close(found.full(), matrix, rtol=1e-5, atol=1e-5)
