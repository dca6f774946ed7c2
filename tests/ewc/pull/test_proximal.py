"""The pull on a block is the implicit step, with the weights that the step size gives."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from ewc.pull import proximal
from ewc.pull.proximal import (
    KEPT,
    KeptWeights,
    pull_on_block,
    pull_weights,
)
from ewc.step_size import Block, StepSize, step_size_rule


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("strength", [1e-30, 1e10, 1e20, 1e22, 1e30, 1e45, 1e300])
@pytest.mark.parametrize("rate", [1e-4, 0.1, 1e3])
def test_the_weights_are_right_for_tiny_precisions_and_huge_strengths(
    dtype: torch.dtype, strength: float, rate: float
) -> None:
    """Against kP / (scale + kP) with k = ηλ, in exact fractions."""
    precisions = [0.0, 1e-30, 1e-22, 1e-20, 1e-18, 1.0, 1e20]
    scales = [1e-8, 1e-2, 1.0, 1e4]
    precision, scale = torch.cartesian_prod(
        torch.tensor(precisions, dtype=dtype), torch.tensor(scales, dtype=dtype)
    ).unbind(1)
    k = Fraction(rate) * Fraction(strength)
    pairs = zip(precision.tolist(), scale.tolist(), strict=True)
    parts = [(k * Fraction(p), Fraction(s)) for p, s in pairs]
    (found,) = pull_weights([precision], StepSize(rate, [scale]), strength)
    expected = torch.tensor([float(kp / (s + kp)) for kp, s in parts], dtype=dtype)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-37)
    (found,) = pull_weights([precision], StepSize(rate), strength)
    expected = torch.tensor([float(kp / (1 + kp)) for kp, _ in parts], dtype=dtype)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-37)


def test_weights_are_kept_while_nothing_changes_and_are_always_those_of_the_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    computed = []

    def counted(precisions: list[Tensor], step: StepSize, strength: float) -> list[Tensor]:
        computed.append(step.rate)
        return pull_weights(precisions, step, strength)

    monkeypatch.setattr(proximal, "pull_weights", counted)
    kept, few, others = KeptWeights(), [torch.rand(3), torch.rand(2, 2)], [torch.rand(3)]
    scaled = StepSize(0.1, [torch.rand(3), torch.rand(2, 2)])
    changes = [
        (few, StepSize(0.1), 2.0, 1),
        (list(few), StepSize(0.1), 2.0, 0),
        (few, StepSize(0.2), 2.0, 1),
        (few, StepSize(0.2), 3.0, 1),
        (others, StepSize(0.2), 3.0, 1),
        (few[:1], StepSize(0.2), 3.0, 1),
        (few, StepSize(0.2), 3.0, 1),
        (few, scaled, 3.0, 1),
        (few, scaled, 3.0, 1),
        (few, StepSize(0.2), 3.0, 0),
    ]
    for precisions, step, strength, times in changes:
        computed.clear()
        found = kept.weights(precisions, step, strength)
        assert len(computed) == times
        torch.testing.assert_close(found, pull_weights(precisions, step, strength))


def test_many_weights_are_not_kept() -> None:
    kept, many = KeptWeights(), [torch.rand(KEPT + 1)]
    assert kept.weights(many, StepSize(0.1), 1.0) is not kept.weights(many, StepSize(0.1), 1.0)


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


def cut(parameters: list[Tensor], size: int, *, whole: bool = False) -> list[Block]:
    """Blocks of parameters whose state, precision and anchor are multiples of them."""
    states = [
        {"step": torch.tensor(3.0), "twice": 2 * p.detach(), "none": None} for p in parameters
    ]
    thrice, fourfold = ([factor * p.detach() for p in parameters] for factor in (3, 4))
    gradients = [p.grad is not None for p in parameters]
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("ewc.step_size.block_size", lambda device: size)
        return list(Block(parameters, gradients, states, thrice, fourfold).cut(whole=whole))


def several_parameters() -> list[Tensor]:
    shapes = [(7, 3), (5,), (), (2, 3, 4, 4), (1, 40), (0, 3)]
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    parameters[3].data = parameters[3].data.contiguous(memory_format=torch.channels_last)
    parameters[1].grad = torch.ones(5)
    return parameters


@torch.no_grad()
def test_pieces_are_views_and_everything_is_cut_alike() -> None:
    parameters = several_parameters()
    before = [p.detach().clone() for p in parameters]
    for block in cut(parameters, size=8):
        for theta, state, precision, anchor in zip(
            block.parameters, block.states, block.precisions, block.anchors, strict=True
        ):
            assert torch.equal(state["twice"], 2 * theta)
            assert torch.equal(precision, 3 * theta)
            assert torch.equal(anchor, 4 * theta)
            assert float(state["step"]) == 3.0
            assert state["none"] is None
        with torch.no_grad():
            torch._foreach_add_(block.parameters, 1.0)
    for parameter, old in zip(parameters, before, strict=True):
        assert torch.equal(parameter, old + 1)


def test_small_parameters_share_a_block_and_large_ones_are_cut_by_rows() -> None:
    sizes = [[p.numel() for p in block.parameters] for block in cut(several_parameters(), size=8)]
    assert sizes == [[6], [6], [6], [3, 5], [1], [48], [48], [40], [0]]
    assert [block.gradients for block in cut(several_parameters(), size=8)][3] == [False, True]
    assert len(cut(several_parameters(), size=1000)) == 1


def test_whole_parameters_are_not_cut_but_share_blocks() -> None:
    sizes = [
        [p.numel() for p in block.parameters] for block in cut(several_parameters(), 8, whole=True)
    ]
    assert sizes == [[21], [5, 1], [96], [40], [0]]
    assert list(Block([], [], [], [], []).cut()) == []
