"""A likelihood given as a function: its gradient at the outputs, and what it may not do."""

from collections.abc import Callable

import pytest
import torch
from support.architectures import perceptron, table
from support.fisher_cases import in_float64
from support.reference import assert_equal_fishers, batch_of_one_fisher, the_target
from torch import Tensor, nn
from torch.nn import functional as F

import ewc
from ewc.fisher.callable_likelihood import callable_cotangent


def test_the_cotangent_is_the_gradient_at_the_outputs() -> None:
    out, targets = torch.randn(5, 3), torch.randn(5, 3)
    cotangent = callable_cotangent(
        lambda o, t: -0.5 * (o - t).square().sum(1), out, targets, "batch 0"
    )
    torch.testing.assert_close(cotangent, targets - out)


def test_a_callable_likelihood_is_the_per_sample_log_likelihood() -> None:
    model, (x,) = in_float64(lambda: (perceptron(nn.Tanh()), table(5, 8)))
    y = torch.randn(5, 3, dtype=torch.float64)
    actual = ewc.fisher_diagonal(
        model, [(x, y)], kind="empirical", likelihood=lambda out, t: -0.5 * ((out - t) ** 2).sum(1)
    )
    assert_equal_fishers(actual, batch_of_one_fisher(model, (x,), y, the_target, "gaussian"))


def test_a_callable_likelihood_must_give_one_value_per_sample() -> None:
    with pytest.raises(ValueError, match=r"one value per sample, shape \(5,\).*\(5, 3\)"):
        ewc.fisher_diagonal(
            nn.Linear(4, 3), [(torch.randn(5, 4), torch.randn(5, 3))], kind="empirical",
            likelihood=lambda out, t: (out - t) ** 2,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("likelihood", "message"),
    [
        (
            lambda o, t: -F.cross_entropy(o, t, reduction="none") / len(o),
            "treat samples separately",
        ),
        (lambda o, t: (o.log_softmax(0)).sum(1), "treat samples separately"),
    ],
)
def test_a_callable_likelihood_that_mixes_samples(
    likelihood: Callable[..., Tensor], message: str
) -> None:
    batches = [(torch.randn(5, 4), torch.randint(3, (5,)))]
    with pytest.raises(ValueError, match=message):
        ewc.fisher_diagonal(nn.Linear(4, 3), batches, kind="empirical", likelihood=likelihood)


def test_a_callable_likelihood_with_a_parameter_of_its_own() -> None:
    scale = nn.Parameter(torch.ones(()))
    with pytest.raises(ValueError, match="depend on its arguments only"):
        ewc.fisher_diagonal(
            nn.Linear(4, 3), [(torch.randn(5, 4), torch.randn(5, 3))], kind="empirical",
            likelihood=lambda o, t: -((o - t) ** 2).sum(1) * scale,
        )  # fmt: skip
