"""Packed batches are refused in words that help."""

import pytest
import torch
from support.trainers import tiny_gpt2

import ewc
from ewc.fisher.packing import refuse_packing

TOKENS = torch.arange(8).reshape(1, 8)
POSITIONS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])


@pytest.mark.parametrize(
    "more", [{"cu_seq_lens_q": torch.tensor([0, 4, 8])}, {"position_ids": POSITIONS}]
)
def test_a_packed_batch_is_refused(more: dict[str, torch.Tensor]) -> None:
    item = {"input_ids": TOKENS, "labels": TOKENS, **more}
    with pytest.raises(ValueError, match=r"batch 0 is packed: .* \(packing=False"):
        ewc.fisher_diagonal(tiny_gpt2(), [item], kind="empirical")


def test_other_positions_are_taken() -> None:
    mask = torch.tensor([[0, 0, 1, 1]])
    refuse_packing({"position_ids": torch.arange(8).expand(2, 8)}, "batch 0")
    refuse_packing(
        {"position_ids": torch.tensor([[1, 1, 0, 1]]), "attention_mask": mask}, "batch 0"
    )
    refuse_packing({"input_ids": TOKENS}, "batch 0")
