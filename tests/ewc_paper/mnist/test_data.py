"""The packaged MNIST, other IDX files, and permuted tasks."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.runs import write_data, write_idx

from ewc_paper.mnist import data
from ewc_paper.mnist.data import PermutedTasks, load, permutation


def test_the_packaged_mnist_is_all_of_mnist() -> None:
    mnist = data.load()
    assert mnist.train.images.shape == (60_000, 784)
    assert mnist.test.images.shape == (10_000, 784)
    assert mnist.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert mnist.train.labels.bincount().tolist()[:3] == [5923, 6742, 5958]
    assert mnist.train.images.dtype == torch.float32
    assert (mnist.train.images.min(), mnist.train.images.max()) == (0, 1)
    assert len(mnist.validation) == 0


def test_validation_images_are_held_out_from_the_end() -> None:
    whole, split = (
        data.load(),
        data.load(validation_samples=5000, train_samples=100, test_samples=7),
    )
    assert (len(split.train), len(split.validation), len(split.test)) == (100, 5000, 7)
    assert torch.equal(split.validation.labels, whole.train.labels[55_000:])


def test_an_altered_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in data.PACKAGED.glob("*.gz"):
        shutil.copy(file, tmp_path)
    file = tmp_path / "t10k-labels-idx1-ubyte.gz"
    labels = data._read_idx(tmp_path, "t10k-labels-idx1-ubyte", {})
    labels[17] = (labels[17] + 1) % 10
    write_idx(file, labels)
    monkeypatch.setattr(data, "PACKAGED", tmp_path)
    with pytest.raises(ValueError, match=r"t10k-labels.*sha256"):
        data.load()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_any_set_of_the_same_shape_loads(tmp_path: Path, suffix: str) -> None:
    loaded = data.load(write_data(tmp_path, train=30, test=10, suffix=suffix))
    assert (len(loaded.train), len(loaded.test)) == (30, 10)


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected train-images-idx3-ubyte"):
        data.load(tmp_path)
    write_data(tmp_path, train=30)
    with pytest.raises(ValueError, match="validation_samples must be 0 to 29, got 30"):
        data.load(tmp_path, validation_samples=30)
    labels = tmp_path / "train-labels-idx1-ubyte"
    write_idx(labels, np.full(30, 11))
    with pytest.raises(ValueError, match="labels 0 to 9, found 11"):
        data.load(tmp_path)
    labels.write_bytes(labels.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"expected 30 bytes.*found 27"):
        data.load(tmp_path)
    write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((30, 32, 32)))
    write_idx(labels, np.zeros(30))
    with pytest.raises(ValueError, match=r"\(n, 28, 28\).*\(30, 32, 32\)"):
        data.load(tmp_path)
    labels.write_bytes(b"no idx")
    with pytest.raises(ValueError, match="not an IDX file"):
        data.load(tmp_path)


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
