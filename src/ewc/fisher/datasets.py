"""Datasets of single samples, which a collator turns into batches."""

from collections.abc import Callable, Iterable
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset

BATCH_SIZE = 32  # joined to larger batches where they are small

Collate = Callable[[list[Any]], Any]


def as_batches(batches: Iterable[Any], collate: Collate | None) -> Iterable[Any]:
    """Return an iterable of batches: `batches` itself, or those of a dataset.

    Args:
        batches: batches, or with `collate` the single samples of a dataset, or a list of them.
        collate: makes a batch of a list of samples.
    """
    if collate is not None:
        if isinstance(batches, DataLoader):
            raise ValueError("a DataLoader has a collator: leave out collate=, or give its dataset")
        return DataLoader(batches, batch_size=BATCH_SIZE, collate_fn=collate)  # type: ignore[arg-type]
    map_style = isinstance(batches, Dataset) and not isinstance(batches, IterableDataset)
    if map_style or hasattr(batches, "column_names"):
        raise TypeError(
            f"a {type(batches).__name__} gives single samples, and batches were expected: add "
            "collate=, the collator of your trainer (torch.utils.data.default_collate for "
            "samples of tensors), or give a DataLoader"
        )
    return batches
