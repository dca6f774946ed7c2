"""Images and labels in IDX form, and the tasks that are made of them by permuting their pixels.

The data is the packaged MNIST, or any set of its shape (Fashion-MNIST): four files, `train-` and
`t10k-`, `images-idx3-ubyte` and `labels-idx1-ubyte`, plain or with `.gz`. Each task is the same
images with its own fixed shuffle of the pixels, which may be limited to a centered square; the
pixels outside it stay where they are.
"""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ewc_paper.seeding import generator

SIDE = 28
PIXELS = SIDE * SIDE
CLASSES = 10
PACKAGED = Path(__file__).parent / "data"

# Of the decompressed packaged files.
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


@dataclass(frozen=True)
class Split:
    """Images `(samples, 784)` in [0, 1], float32, and labels `(samples,)`, int64."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice) -> "Split":
        return Split(self.images[rows], self.labels[rows])

    def to(self, device: torch.device) -> "Split":
        """The same split on a device."""
        return Split(self.images.to(device), self.labels.to(device))

    def take(self, rows: Tensor) -> "Split":
        """A copy of these rows; `index_select` copies whole rows, twice as fast as indexing."""
        return Split(self.images.index_select(0, rows), self.labels.index_select(0, rows))


@dataclass(frozen=True)
class Data:
    """What is trained on, what early stopping and search look at, and what is reported."""

    train: Split
    validation: Split
    test: Split

    def to(self, device: torch.device) -> "Data":
        """The same data on a device."""
        return Data(self.train.to(device), self.validation.to(device), self.test.to(device))


def load(
    directory: str | Path | None = None,
    *,
    validation_samples: int = 0,
    train_samples: int | None = None,
    test_samples: int | None = None,
) -> Data:
    """Read the data set in `directory`, or the packaged MNIST.

    The last `validation_samples` training images are held out; `train_samples` and `test_samples`
    take only that many from the front of what is left, for quick runs. Asking for more images than
    there are raises ValueError.
    """
    source = PACKAGED if directory is None else Path(directory)
    sha256 = SHA256 if directory is None else {}
    everything = _split(source, "train", sha256)
    kept = len(everything) - validation_samples
    if not 0 < kept <= len(everything):
        raise ValueError(
            f"validation_samples must be 0 to {len(everything) - 1}, got {validation_samples}"
        )
    test = _split(source, "t10k", sha256)
    if train_samples is not None and not 0 < train_samples <= kept:
        held_out = f", as {validation_samples} are held out" if validation_samples else ""
        raise ValueError(
            f"train_samples must be 1 to {kept}, the images there are{held_out}; "
            f"got {train_samples}"
        )
    if test_samples is not None and not 0 < test_samples <= len(test):
        raise ValueError(
            f"test_samples must be 1 to {len(test)}, the images there are; got {test_samples}"
        )
    return Data(
        everything[:kept][slice(train_samples)], everything[kept:], test[slice(test_samples)]
    )


def _split(directory: Path, prefix: str, sha256: dict[str, str]) -> Split:
    images = _read_idx(directory, f"{prefix}-images-idx3-ubyte", sha256)
    labels = _read_idx(directory, f"{prefix}-labels-idx1-ubyte", sha256)
    if images.shape[1:] != (SIDE, SIDE) or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{directory}: expected {prefix} images (n, {SIDE}, {SIDE}) and labels (n,), "
            f"found {images.shape} and {labels.shape}"
        )
    if labels.max(initial=0) >= CLASSES:
        raise ValueError(
            f"{directory}: expected {prefix} labels 0 to {CLASSES - 1}, found {labels.max()}"
        )
    pixels = torch.from_numpy(images.reshape(-1, PIXELS)).float().div_(255)
    return Split(pixels, torch.from_numpy(labels).long())


def _read_idx(
    directory: Path, name: str, sha256: dict[str, str]
) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """IDX: 0, 0, 8 (unsigned bytes), the rank, the dimensions as big-endian int32, the bytes."""
    content = _content(directory, name)
    if name in sha256 and hashlib.sha256(content).hexdigest() != sha256[name]:
        raise ValueError(
            f"{directory / name}: altered (its sha256 is not the known one); reinstall ewc-paper"
        )
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise ValueError(f"{directory / name}: not an IDX file of unsigned bytes")
    rank = content[3]
    shape = tuple(int(n) for n in np.frombuffer(content, ">i4", count=rank, offset=4))
    if len(content) - 4 - 4 * rank != np.prod(shape):
        raise ValueError(
            f"{directory / name}: expected {np.prod(shape)} bytes for shape {shape}, "
            f"found {len(content) - 4 - 4 * rank}; the file may be cut short"
        )
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(shape).copy()


def _content(directory: Path, name: str) -> bytes:
    plain, packed = directory / name, directory / f"{name}.gz"
    if plain.exists():
        return plain.read_bytes()
    if packed.exists():
        with gzip.open(packed) as file:
            return file.read()
    raise FileNotFoundError(f"{directory}: expected {name} or {name}.gz there, found neither")


def permutation(seed: int, task: int, square: int = SIDE) -> Tensor:
    """The order of the 784 pixels for one task: a shuffle within the centered square."""
    if not 1 <= square <= SIDE:
        raise ValueError(f"square must be 1 to {SIDE} pixels, got {square}")
    margin = (SIDE - square) // 2
    inside = torch.arange(PIXELS).view(SIDE, SIDE)
    inside = inside[margin : margin + square, margin : margin + square].reshape(-1)
    order = torch.arange(PIXELS)
    shuffle = torch.randperm(len(inside), generator=generator(seed, "pixels", task))
    order[inside] = inside[shuffle]
    return order


@dataclass(frozen=True)
class PermutedTasks:
    """The tasks 0, 1, 2, ... of one seed over one data set."""

    data: Data
    seed: int
    square: int = SIDE

    @cached_property
    def _order(self) -> dict[int, Tensor]:
        return {}

    def order(self, task: int) -> Tensor:
        if task not in self._order:
            order = permutation(self.seed, task, self.square)
            self._order[task] = order.to(self.data.train.images.device)
        return self._order[task]

    def permuted(self, split: Split, task: int) -> Split:
        """A copy of the split with the task's pixels."""
        # Four times as fast as indexing.
        return Split(split.images.index_select(1, self.order(task)), split.labels)

    def mixture(self, tasks: range, random: torch.Generator) -> Split:
        """The training images, each with the pixels of a task drawn evenly from `tasks`."""
        images = self.data.train.images
        drawn = torch.randint(tasks.start, tasks.stop, (len(images),), generator=random)
        drawn = drawn.to(images.device)
        mixed = torch.empty_like(images)
        for task in tasks:
            rows = (drawn == task).nonzero().squeeze(1)
            mixed[rows] = images[rows][:, self.order(task)]
        return Split(mixed, self.data.train.labels)
