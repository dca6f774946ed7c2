"""The noise has the shape and size it says, and leaves the weights as they were, bit for bit."""

import copy

import pytest
import torch
from torch import nn

from ewc.perturbation import noise_variance, perturbed

SHAPES = ["uniform", "inverse-fisher", "nullspace"]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 5))


@pytest.fixture
def fisher(model):
    generator = torch.Generator().manual_seed(1)
    fisher = {n: torch.rand(p.shape, generator=generator) for n, p in model.named_parameters()}
    for tensor in fisher.values():
        tensor[tensor < 0.3] = 0.0
    return fisher


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


@pytest.mark.parametrize("shape", SHAPES)
def test_the_noise_has_the_variance_of_its_shape(model, fisher, shape):
    before, f = flat(model.parameters()).double(), flat(fisher.values()).double()
    noise = perturbed(model, fisher, 0.5, shape=shape, damping=0.1)
    total, draws = torch.zeros_like(before), 400
    mean = torch.zeros_like(before)
    for _ in range(draws):
        with noise:
            drawn = flat(model.parameters()).double() - before
        total += drawn.square() / draws
        mean += drawn / draws
    expected = {
        "uniform": torch.ones_like(f),
        "inverse-fisher": 1 / (f + 0.1 * f.mean()),
        "nullspace": (f == 0).double(),
    }[shape]
    expected *= 0.25 / expected.mean()
    groups = f > 0.5, (f > 0) & (f <= 0.5), f == 0
    for group in groups:  # the mean over hundreds of weights and 400 draws is sharp to about 1 %
        torch.testing.assert_close(
            total[group].mean(), expected[group].mean(), rtol=0.03, atol=1e-12
        )
    assert total.mean().sqrt() == pytest.approx(0.5, rel=0.01)
    assert mean.abs().mean() < 0.5 / draws**0.5
    if shape == "nullspace":
        assert not total[f > 0].any()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_variance_has_mean_one_and_does_not_depend_on_the_units_of_the_fisher(fisher, shape):
    variance = flat(noise_variance(fisher, shape, 1e-3, 1e-6).values())
    assert variance.mean() == pytest.approx(1.0, rel=1e-4)
    tiny = {name: 1e-20 * tensor for name, tensor in fisher.items()}
    torch.testing.assert_close(flat(noise_variance(tiny, shape, 1e-3, 1e-6).values()), variance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_weights_come_back_bit_for_bit_also_on_an_exception(model, fisher, dtype):
    model = model.to(dtype)
    before = copy.deepcopy(model.state_dict())
    noise = perturbed(model, fisher, 3.0, shape="inverse-fisher")
    with noise:
        assert not torch.equal(model[0].weight, before["0.weight"])
    with pytest.raises(KeyboardInterrupt), noise:
        raise KeyboardInterrupt
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_each_entry_draws_anew_and_the_generator_decides(model, fisher):
    def draws(seed):
        noise = perturbed(model, fisher, 1.0, generator=torch.Generator().manual_seed(seed))
        out = []
        for _ in range(2):
            with noise:
                out.append(flat(model.parameters()))
        return out

    state = torch.get_rng_state()
    first, again, other = draws(1), draws(1), draws(2)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])


def test_only_the_selected_weights_move(model, fisher):
    before = copy.deepcopy(model.state_dict())
    with perturbed(model, fisher, 1.0, parameters="2.*"):
        assert torch.equal(model[0].weight, before["0.weight"])
        assert not torch.equal(model[2].weight, before["2.weight"])
    part = {name: tensor for name, tensor in fisher.items() if name.startswith("0.")}
    with perturbed(model, part, 1.0):
        assert not torch.equal(model[0].weight, before["0.weight"])
        assert torch.equal(model[2].weight, before["2.weight"])


def test_it_cannot_be_entered_twice_at_once(model, fisher):
    before = flat(model.parameters())
    noise = perturbed(model, fisher, 1.0)
    with noise, pytest.raises(RuntimeError, match="already active"):
        noise.__enter__()
    assert torch.equal(flat(model.parameters()), before)


def test_bad_input_is_refused(model, fisher):
    part = {name: tensor for name, tensor in fisher.items() if name != "0.bias"}
    for message, arguments, options in [
        ("scale >= 0, got -1", (fisher, -1.0), {}),
        ("scale >= 0, got nan", (fisher, float("nan")), {}),
        ("got shape='round'", (fisher, 1.0), {"shape": "round"}),
        ("damping > 0, got 0", (fisher, 1.0), {"shape": "inverse-fisher", "damping": 0.0}),
        ("expected a Fisher for '0.bias'", (part, 1.0), {"parameters": "0.*"}),
        ("'x', which is not a selected", ({**fisher, "x": torch.ones(1)}, 1.0), {}),
        (
            r"shape \(40,\) for '0.bias', got \(1,\)",
            ({**fisher, "0.bias": torch.ones(1)}, 1.0),
            {},
        ),
        (">= 0 for '0.bias'", ({**fisher, "0.bias": -torch.ones(40)}, 1.0), {}),
        (
            "no null space",
            ({name: tensor + 1 for name, tensor in fisher.items()}, 1.0),
            {"shape": "nullspace"},
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            perturbed(model, *arguments, **options)
