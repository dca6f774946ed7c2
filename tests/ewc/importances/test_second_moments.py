"""The second moments are those of the optimizer's gradients, without the bias of their start."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ewc.fisher import fisher_diagonal
from ewc.importances import second_moments
from ewc.memory import EWC

OPTIMIZERS = {
    "adam": (lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.9, 0.95)), 0.95),
    "amsgrad": (lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.9, 0.95), amsgrad=True), 0.95),
    "adamw": (lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.9), weight_decay=0.1), 0.9),
    "rmsprop": (lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.8), 0.8),
    "centered": (lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.8, centered=True), 0.8),
}


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def train(model, optimizer, steps):
    """Train, and return the gradients of all steps."""
    torch.manual_seed(1)
    gradients = []
    for _ in range(steps):
        x, y = torch.randn(10, 5).double(), torch.randint(3, (10,))
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
        optimizer.step()
    return gradients


@pytest.mark.parametrize("steps", [1, 12])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_they_are_the_weighted_mean_of_the_squared_gradients(name, steps):
    make, beta = OPTIMIZERS[name]
    model = make_model()
    optimizer = make(model.parameters())
    gradients = train(model, optimizer, steps)
    found = second_moments(model, optimizer, batch_size=10)
    ages = [beta ** (steps - 1 - k) for k in range(steps)]
    for key, tensor in found.items():
        squares = [age * g[key].square() for age, g in zip(ages, gradients, strict=True)]
        torch.testing.assert_close(tensor, 10 * sum(squares) / sum(ages), rtol=1e-10, atol=0)
    assert found.keys() == dict(model.named_parameters()).keys()
    EWC(model, strength=1.0).anchor(found)


def test_times_the_batch_size_they_are_near_the_empirical_fisher_where_the_mean_gradient_is_zero():
    torch.manual_seed(0)
    batch, samples = 8, 40_000
    model = nn.Linear(3, 2, bias=False).double()
    with torch.no_grad():
        model.weight.zero_()
    x, y = torch.randn(samples, 3).double(), torch.randint(2, (samples,))  # nothing to be learned
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.9999))
    for inputs, labels in zip(x.split(batch), y.split(batch), strict=True):
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    fisher = fisher_diagonal(model, [(x, y)], kind="empirical")["weight"]
    found = second_moments(model, optimizer, batch_size=batch)["weight"]
    torch.testing.assert_close(found, fisher, rtol=0.1, atol=0)


def test_they_are_copies_in_float32_at_least():
    model = make_model().bfloat16()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 5).bfloat16()).sum().backward()
    optimizer.step()
    found = second_moments(model, optimizer)
    assert all(tensor.dtype == torch.float32 for tensor in found.values())
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer, 1)
    found = second_moments(model, optimizer)
    before = optimizer.state[model[0].weight]["exp_avg_sq"].clone()
    found["0.weight"].zero_()
    assert torch.equal(optimizer.state[model[0].weight]["exp_avg_sq"], before)


def test_a_weight_without_gradients_has_no_importance():
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    optimizer = torch.optim.Adam(model.parameters())
    model["used"](torch.randn(4, 2)).sum().backward()
    optimizer.step()
    found = second_moments(model, optimizer)
    assert found["used.weight"].all()
    assert not found["unused.weight"].any()
    assert not found["unused.weight"].requires_grad


def test_what_has_no_moments_is_refused():
    model = make_model()
    with pytest.raises(ValueError, match="got SGD"):
        second_moments(model, torch.optim.SGD(model.parameters(), lr=0.1))
    adam = torch.optim.Adam(model.parameters())
    with pytest.raises(ValueError, match="after its first step"):
        second_moments(model, adam)
    train(model, adam, 1)
    for batch_size in (0, -1):
        with pytest.raises(ValueError, match="batch_size > 0"):
            second_moments(model, adam, batch_size=batch_size)
    head = torch.optim.Adam(model[2].parameters())
    train(model, head, 1)
    with pytest.raises(ValueError, match=r"expected an optimizer of '0\.weight'"):
        second_moments(model, head)
    assert second_moments(model, head, parameters="2.*").keys() == {"2.weight", "2.bias"}
