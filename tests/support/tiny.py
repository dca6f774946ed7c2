"""A world small enough for tests: a few images in IDX form, and options to match."""

import gzip
from pathlib import Path

import numpy as np

OPTIONS = {
    "train_samples": 120,
    "test_samples": 40,
    "layers": 1,
    "width": 8,
    "epochs": 2,
    "batch_size": 20,
    "lr": 0.01,
    "fisher_samples": 40,
    "segments": 2,
    "tasks": 2,
}
FLAGS = [
    text for name, value in OPTIONS.items() for text in (f"--{name.replace('_', '-')}", str(value))
]


def write_idx(file: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    content = header + array.astype(np.uint8).tobytes()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def write_data(directory: Path, *, train: int = 160, test: int = 40, suffix: str = "") -> Path:
    """Images whose class shows: a bright row of pixels, in noise."""
    random = np.random.default_rng(0)
    directory.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", train), ("t10k", test)):
        labels = random.integers(0, 10, count)
        images = random.integers(0, 128, (count, 28, 28))
        images[np.arange(count), 4 + 2 * labels] += 120
        write_idx(directory / f"{prefix}-images-idx3-ubyte{suffix}", images)
        write_idx(directory / f"{prefix}-labels-idx1-ubyte{suffix}", labels)
    return directory
