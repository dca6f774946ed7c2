"""The pull on a block is the implicit step, with the weights that the step size gives."""

import pytest
import torch
from torch.optim import SGD

from ewc.block_pull import pull_on_block, pull_weights
from ewc.blocks import Block
from ewc.step_size import StepSize, step_size_rule


def test_the_weights_of_the_pull() -> None:
    precision, scale = torch.tensor([0.0, 1.0, 4.0]), torch.tensor([1.0, 2.0, 0.5])
    eta = 0.3 / scale
    (found,) = pull_weights([precision], StepSize(0.3, [scale]), 2.0)
    torch.testing.assert_close(found, eta * 2 * precision / (1 + eta * 2 * precision))
    (found,) = pull_weights([precision], StepSize(0.3), 2.0)
    torch.testing.assert_close(found, 0.6 * precision / (1 + 0.6 * precision))


@pytest.mark.parametrize("strength", [0.0, 1e-45, 1e-30])
def test_a_strength_close_to_nothing_pulls_on_nothing(strength: float) -> None:
    """As a budget has it after a long rest, with a learning rate that has decayed."""
    precision, scale = torch.tensor([0.0, 1.0, 4.0]), torch.tensor([1.0, 2.0, 1e9])
    for step in (StepSize(1e-8, [scale]), StepSize(1e-8)):
        (found,) = pull_weights([precision], step, strength)
        torch.testing.assert_close(found, torch.zeros(3), rtol=0, atol=1e-20)


@pytest.mark.parametrize(("share", "expected"), [(1.0, 2.0), (torch.tensor(0.0), 3.0)])
def test_a_block_is_pulled_unless_the_step_was_skipped(
    share: float | torch.Tensor, expected: float
) -> None:
    """From 3 to 1 with ηλP = 1, which is half of the way."""
    theta = torch.full((4,), 3.0)
    optimizer = SGD([torch.nn.Parameter(theta)], lr=0.5)
    block = Block([theta], [True], [{}], [torch.ones(4)], [torch.ones(4)])
    rule, group = step_size_rule(optimizer), optimizer.param_groups[0]
    pull_on_block(rule, group, block, 2.0, share)
    torch.testing.assert_close(theta, torch.full((4,), expected))


def test_a_rate_of_zero_pulls_on_nothing() -> None:
    theta = torch.full((4,), 3.0)
    optimizer = SGD([torch.nn.Parameter(theta)], lr=0.0)
    block = Block([theta], [True], [{}], [torch.ones(4)], [torch.ones(4)])
    pull_on_block(step_size_rule(optimizer), optimizer.param_groups[0], block, 2.0, 1.0)
    assert torch.equal(theta, torch.full((4,), 3.0))
