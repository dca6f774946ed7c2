"""Comparisons of whole models with the batch-of-one loop, shared by the tests of the Fisher."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import ewc

from .architectures import Case
from .reference import EXACT, assert_equal_fishers, batch_of_one_fisher, the_target


def in_float64(make: Callable[[], Case]) -> Case:
    torch.manual_seed(0)
    model, inputs = make()
    return model.double().eval(), tuple(x.double() if x.is_floating_point() else x for x in inputs)


def check_against_loop(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Empirical and exact, in one batch and in batches of two sizes."""
    with torch.no_grad():
        output = model(*inputs)
    targets = torch.randint(output.shape[-1], output.shape[:-1])
    expected = batch_of_one_fisher(model, inputs, targets, the_target)
    assert_equal_fishers(
        ewc.fisher_diagonal(model, [(inputs, targets)], kind="empirical"), expected
    )
    split = [(tuple(x[a:b] for x in inputs), targets[a:b]) for a, b in ((0, 2), (2, 3), (3, 99))]
    split = [batch for batch in split if len(batch[1])]
    assert_equal_fishers(ewc.fisher_diagonal(model, split, kind="empirical"), expected)
    expected = batch_of_one_fisher(model, inputs, None, EXACT["categorical"])
    assert_equal_fishers(ewc.fisher_diagonal(model, [(inputs,)]), expected)
