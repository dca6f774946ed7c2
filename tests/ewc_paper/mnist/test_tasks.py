"""Permutations are fixed by the seed and stay within their square."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.tiny import write_data

from ewc_paper.mnist.data import load
from ewc_paper.mnist.tasks import PermutedTasks, permutation


@given(seed=st.integers(0, 2**40), task=st.integers(0, 100), square=st.integers(1, 28))
def test_only_the_centered_square_is_shuffled(seed: int, task: int, square: int) -> None:
    order = permutation(seed, task, square)
    assert torch.equal(order.sort().values, torch.arange(784))
    rows, columns = torch.arange(784) // 28, torch.arange(784) % 28
    moved = order != torch.arange(784)
    margin = (28 - square) // 2
    for place in (rows[moved], columns[moved]):
        assert bool(((place >= margin) & (place < margin + square)).all())
    assert torch.equal(order, permutation(seed, task, square))


def test_tasks_and_seeds_have_permutations_of_their_own() -> None:
    orders = {tuple(permutation(seed, task).tolist()) for seed in range(3) for task in range(4)}
    assert len(orders) == 12


@pytest.mark.parametrize("square", [0, 29, -1])
def test_a_square_that_does_not_fit_is_refused(square: int) -> None:
    with pytest.raises(ValueError, match=f"square must be 1 to 28 pixels, got {square}"):
        permutation(0, 0, square)


def test_a_task_permutes_every_image_alike(tmp_path: Path) -> None:
    tasks = PermutedTasks(load(write_data(tmp_path)), seed=3)
    permuted = tasks.permuted(tasks.data.test, 5)
    order = permutation(3, 5)
    for image, original in zip(permuted.images, tasks.data.test.images, strict=True):
        assert torch.equal(image, original[order])


def test_a_mixture_draws_evenly_from_all_its_tasks(tmp_path: Path) -> None:
    tasks = PermutedTasks(load(write_data(tmp_path, train=300)), seed=3)
    mixed = tasks.mixture(range(3), torch.Generator().manual_seed(0))
    counts = [0, 0, 0]
    for image, original in zip(mixed.images, tasks.data.train.images, strict=True):
        counts[
            [torch.equal(image, original[permutation(3, task)]) for task in range(3)].index(True)
        ] += 1
    assert sum(counts) == 300
    assert min(counts) > 70
