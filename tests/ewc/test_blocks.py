"""Blocks have every number of every parameter once, as views of at most the wanted size."""

import pytest
import torch
from torch import Tensor, nn

from ewc.blocks import CPU_BLOCK, DEVICE_BLOCK, Block, block_size


def cut(parameters: list[Tensor], size: int, *, whole: bool = False) -> list[Block]:
    """Blocks of parameters whose state, precision and anchor are multiples of them."""
    states = [
        {"step": torch.tensor(3.0), "twice": 2 * p.detach(), "none": None} for p in parameters
    ]
    thrice, fourfold = ([factor * p.detach() for p in parameters] for factor in (3, 4))
    gradients = [p.grad is not None for p in parameters]
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("ewc.blocks.block_size", lambda device: size)
        return list(Block(parameters, gradients, states, thrice, fourfold).cut(whole=whole))


def example() -> list[Tensor]:
    shapes = [(7, 3), (5,), (), (2, 3, 4, 4), (1, 40), (0, 3)]
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    parameters[3].data = parameters[3].data.contiguous(memory_format=torch.channels_last)
    parameters[1].grad = torch.ones(5)
    return parameters


@torch.no_grad()
def test_pieces_are_views_and_everything_is_cut_alike() -> None:
    parameters = example()
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
    sizes = [[p.numel() for p in block.parameters] for block in cut(example(), size=8)]
    assert sizes == [[6], [6], [6], [3, 5], [1], [48], [48], [40], [0]]
    assert [block.gradients for block in cut(example(), size=8)][3] == [False, True]
    assert len(cut(example(), size=1000)) == 1


def test_whole_parameters_are_not_cut_but_share_blocks() -> None:
    sizes = [[p.numel() for p in block.parameters] for block in cut(example(), 8, whole=True)]
    assert sizes == [[21], [5, 1], [96], [40], [0]]
    assert list(Block([], [], [], [], []).cut()) == []


def test_chosen_entries_of_a_block() -> None:
    (block,) = cut(example(), size=1000)
    chosen = block.only([4, 1])
    assert [p.numel() for p in chosen.parameters] == [40, 5]
    assert chosen.gradients == [False, True]
    assert torch.equal(chosen.anchors[0], 4 * chosen.parameters[0])


def test_each_thread_has_its_part_of_a_block() -> None:
    threads = torch.get_num_threads()
    assert block_size(torch.device("cpu")) == CPU_BLOCK * threads
    assert block_size(torch.device("cuda")) == DEVICE_BLOCK
