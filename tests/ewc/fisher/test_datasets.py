"""Datasets of single samples are taken with a collator, and not without."""

from typing import Any

import datasets
import pytest
import torch
from support.trainers import NEW, memory_of, tiny_gpt2
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import ewc
from ewc.fisher.datasets import BATCH_SIZE, as_batches

ROWS = datasets.Dataset.from_dict({"input_ids": [row[: 4 + n % 3].tolist() for n, row in
                                                 enumerate(NEW)]})  # fmt: skip


def padded(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    tokens = [torch.tensor(row["input_ids"]) for row in rows]
    labels = nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=-100)
    return {"input_ids": labels.clamp(min=0), "attention_mask": labels.ge(0).long(),
            "labels": labels}  # fmt: skip


def test_a_dataset_of_hugging_face_with_its_collator() -> None:
    model = tiny_gpt2()
    fisher = ewc.fisher_diagonal(model, ROWS, collate=padded, kind="empirical")
    loader = DataLoader(ROWS, batch_size=5, collate_fn=padded)
    expected = ewc.fisher_diagonal(model, loader, kind="empirical")
    for name, value in expected.items():
        torch.testing.assert_close(fisher[name], value, rtol=1e-4, atol=1e-8)
    assert (
        memory_of(model).consolidate(ROWS, collate=padded, kind="sampled").keys() == fisher.keys()
    )


def test_a_map_style_dataset() -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(70, 4), torch.randint(3, (70,))
    fisher = ewc.fisher_diagonal(model, TensorDataset(x, y), collate=default_collate)
    expected = ewc.fisher_diagonal(model, [(x, y)])
    for name, value in expected.items():
        torch.testing.assert_close(fisher[name], value)
    sizes = [len(batch[0]) for batch in as_batches(TensorDataset(x, y), default_collate)]
    assert sizes == [BATCH_SIZE, BATCH_SIZE, 6]


@pytest.mark.parametrize("dataset", [ROWS, TensorDataset(torch.zeros(3, 4))], ids=["hf", "torch"])
def test_without_a_collator_it_is_refused(dataset: Any) -> None:
    with pytest.raises(TypeError, match=r"Dataset gives single samples, .* add collate="):
        ewc.fisher_diagonal(nn.Linear(4, 3), dataset)


def test_a_loader_has_its_own() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(3, 4)))
    with pytest.raises(ValueError, match="a DataLoader has a collator"):
        ewc.fisher_diagonal(nn.Linear(4, 3), loader, collate=default_collate)


def test_a_collator_has_no_effect_on_a_ready_fisher() -> None:
    memory = ewc.EWC(nn.Linear(4, 3), strength=1.0)
    fisher = {"weight": torch.ones(3, 4), "bias": torch.ones(3)}
    with pytest.raises(ValueError, match="has no effect on a ready Fisher"):
        memory.consolidate(fisher, collate=default_collate)
