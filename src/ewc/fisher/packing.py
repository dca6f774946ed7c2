"""Packed batches, in which several sequences share a row: their samples cannot be told apart."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def refuse_packing(inputs: Mapping[str, Any], where: str) -> None:
    """Raise if a batch is packed: the lengths of sequences are given, or positions start again.

    Args:
        inputs: the keywords of the model.
        where: the name of the batch in error messages.
    """
    lengths = [key for key in inputs if key.startswith(("cu_seq_len", "cu_seqlen"))]
    if lengths or _positions_start_again(inputs):
        shown = repr(lengths[0]) if lengths else "'position_ids' that start again within a row"
        raise ValueError(
            f"{where} is packed: it has {shown}, so several sequences share a row, and the Fisher "
            "needs the gradient of each. Use a loader without packing (packing=False and "
            "padding_free=False in TRL), or blocks of one sequence (packing_strategy='wrapped', "
            "padding_free=False)"
        )


def _positions_start_again(inputs: Mapping[str, Any]) -> bool:
    positions = inputs.get("position_ids")
    if "attention_mask" in inputs or not isinstance(positions, Tensor) or positions.ndim != 2:
        return False  # with a mask, positions may start after the padding
    return bool((positions.diff(dim=1) < 0).any())
