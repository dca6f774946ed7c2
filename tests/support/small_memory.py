"""A small model, batches for it, and equation 3 written out, for the tests of the memory."""

import torch
from torch import nn


def make_model(seed=0, outputs=3):
    torch.manual_seed(seed)
    model = nn.Sequential()
    model.add_module("body", nn.Linear(4, 5))
    model.add_module("act", nn.Tanh())
    model.add_module("head", nn.Linear(5, outputs))
    return model.double()


def make_batches(seed, count=2, outputs=3):
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(6, 4, generator=generator, dtype=torch.float64),
            torch.randint(outputs, (6,), generator=generator),
        )
        for _ in range(count)
    ]


def move(model, seed, size=0.3):
    """Stand for training: put the weights somewhere else."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(size * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p))


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def equation_3(model, wells, strength):
    """Σ_t (λ/2) Σ_i F_ti (θ_i − θ*_ti)², one term a task and parameter."""
    parameters = dict(model.named_parameters())
    return sum(
        strength / 2 * (f[name] * (parameters[name] - anchor[name]) ** 2).sum()
        for f, anchor in wells
        for name in f
    )


def assert_same_pull(model, penalty, expected):
    """The same value and the same gradient."""
    parameters = list(model.parameters())
    torch.testing.assert_close(penalty, expected, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(
        torch.autograd.grad(penalty, parameters, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(expected, parameters, allow_unused=True, materialize_grads=True),
        rtol=1e-11,
        atol=1e-14,
    )


def learn(memory, model, task, seed, **options):
    """Move somewhere, consolidate there, and return the well that this must have made."""
    move(model, seed)
    fisher = memory.consolidate(make_batches(seed), task=task, **options)
    memory.penalty()
    return fisher, weights(model)


def one_step(model, optimizer, batch):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
