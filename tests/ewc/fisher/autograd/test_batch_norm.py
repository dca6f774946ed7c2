"""Batch norm with running statistics, where PyTorch's own backward is wrong."""

from collections.abc import Callable

import pytest
import torch
from support.architectures import Custom
from support.reference import assert_equal_fishers, batch_of_one_fisher, the_target
from torch import Tensor, nn

import ewc
from ewc.fisher.autograd.batch_norm import (
    BatchNormCall,
    batch_norm_call,
    correct_batch_norms,
    normalized,
)
from ewc.fisher.autograd.graph import Graph


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("affine", [True, False])
def test_normalized_is_what_the_module_computes(affine: bool) -> None:
    norm = nn.BatchNorm2d(3, affine=affine).double()
    norm(2 * normal(20, 3, 4, 4) + 1)
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    x = normal(2, 3, 5, 1).requires_grad_()
    output = norm.eval()(x)
    normed, slope = normalized(
        BatchNormCall(x, norm.running_mean, norm.running_var, norm.eps, norm.weight)
    )
    if affine:
        torch.testing.assert_close(
            output, normed * norm.weight.view(-1, 1, 1) + norm.bias.view(-1, 1, 1)
        )
    else:
        torch.testing.assert_close(output, normed)
    (gradient,) = torch.autograd.grad(output.sum(), x)
    torch.testing.assert_close(gradient, slope.expand_as(x))


def test_the_call_is_read_from_the_graph() -> None:
    norm = nn.BatchNorm1d(3).double().eval()
    x = normal(4, 3).requires_grad_()
    call = batch_norm_call(norm(x).grad_fn)
    assert torch.equal(call.inputs, x)
    assert torch.equal(call.mean, norm.running_mean)
    assert torch.equal(call.variance, norm.running_var)
    assert torch.equal(call.weight, norm.weight)
    assert call.eps == norm.eps


def test_corrected_gradients_are_those_of_the_equation() -> None:
    """The gradient is stored in another order than the input."""
    norm = nn.BatchNorm2d(6).double()
    norm(2 * normal(20, 6, 4, 4) + 1)
    norm.eval()
    x = normal(5, 4, 6).requires_grad_()
    output = norm(x.transpose(1, 2).unsqueeze(-1))
    correct_batch_norms(Graph(output, {}))
    grad = normal(5, 6, 4, 1, seed=1)
    actual = torch.autograd.grad(output, [x, norm.weight, norm.bias], grad)
    scale = (norm.running_var + norm.eps).rsqrt()
    normed = (x.transpose(1, 2) - norm.running_mean.view(-1, 1)) * scale.view(-1, 1)
    grad = grad.squeeze(-1)
    expected_x = (grad * (norm.weight * scale).view(-1, 1)).transpose(1, 2)
    expected = (expected_x, (grad * normed).sum((0, 2)), grad.sum((0, 2)))
    torch.testing.assert_close(actual, tuple(one.detach() for one in expected))


def test_a_spatial_dimension_of_one() -> None:
    """PyTorch's backward is wrong there; one dimension less is right."""

    def forward(m: Custom, x: Tensor) -> Tensor:
        h = m.a(x).transpose(1, 2)
        h = m.n(h.unsqueeze(-1)).squeeze(-1) if isinstance(m.n, nn.BatchNorm2d) else m.n(h)
        return m.b(h.transpose(1, 2)).mean(1)

    torch.manual_seed(0)
    parts = {"a": nn.Linear(4, 6), "b": nn.Linear(6, 3)}
    right = Custom(forward, n=nn.BatchNorm1d(6), **parts).double()
    right.n(normal(30, 6, 4) * 2 + 1)
    model = Custom(forward, n=nn.BatchNorm2d(6), **parts).double()
    model.load_state_dict(right.state_dict())
    x, y = normal(6, 5, 4), torch.randint(3, (6,))
    expected = batch_of_one_fisher(right.eval(), (x,), y, the_target)
    actual = ewc.fisher_diagonal(model, [(x, y)], kind="empirical")
    assert_equal_fishers({name: actual[name] for name in expected}, expected)


def test_batch_norm_of_one_sample_with_an_expanded_gradient() -> None:
    """PyTorch's own backward is wrong there, so the reference writes the norm out."""
    norm, written_out = nn.BatchNorm2d(6).double(), nn.BatchNorm2d(6).double()
    norm(3 + 2 * normal(30, 6, 4, 4))
    written_out.load_state_dict(norm.state_dict())

    def affine(m: Custom, x: Tensor) -> Tensor:
        shape = (-1, 1, 1)
        scale = m.norm.weight / (m.norm.running_var + m.norm.eps).sqrt()
        return (x - m.norm.running_mean.view(shape)) * scale.view(shape) + m.norm.bias.view(shape)

    def model(apply: Callable[[Custom, Tensor], Tensor], norm: nn.Module) -> Custom:
        def forward(m: Custom, x: Tensor) -> Tensor:
            rows = apply(m, m.conv(x)).flatten(2).transpose(1, 2)
            return rows.mean(1)

        torch.manual_seed(0)
        return Custom(forward, conv=nn.Conv2d(3, 6, 1), norm=norm).double().eval()

    x, y = normal(5, 3, 4, 4), torch.randint(6, (5,))
    expected = batch_of_one_fisher(model(affine, written_out), (x,), y, the_target)
    plain = model(lambda m, h: m.norm(h), norm)
    for batches in ([(x, y)], [(x[:1], y[:1]), (x[1:], y[1:])]):
        assert_equal_fishers(ewc.fisher_diagonal(plain, batches, kind="empirical"), expected)
