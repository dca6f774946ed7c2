"""The packaged MNIST is whole; other sets of its shape load, or are refused with a reason."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from support.tiny import write_data, write_idx

from ewc_paper.mnist import data


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
