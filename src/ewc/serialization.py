"""A memory as a flat dict of tensors, and back.

Every entry is a tensor of its own, so that `torch.save` and safetensors take it as it is: the wells
under `total.*` and `task.<number>.*`, and all plain values as JSON in the bytes of `values`.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ewc.wells import Well

FORMAT = 2
READABLE = (1, 2)  # the first had no remainders
FIELDS = ("precision", "anchor", "remainder")


def pack(total: Well, kept: Mapping[str, Well], values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the wells and the plain values as one flat dict of tensors."""
    state = _pack_well("total", total)
    for number, well in enumerate(kept.values()):
        state |= _pack_well(f"task.{number}", well)
    text = json.dumps(
        {
            "format": FORMAT,
            **values,
            "bottoms": [total.bottom, *(well.bottom for well in kept.values())],
        }
    )
    state["values"] = torch.tensor(list(text.encode()), dtype=torch.uint8)
    return state


def unpack(
    state: Mapping[str, Tensor], parameters: Mapping[str, Tensor], *, keep_tasks: bool
) -> tuple[Well, dict[str, Well], dict[str, Any]]:
    """Return the total well, the kept ones and the plain values; raise at the first mismatch.

    `parameters` are those that the memory may hold; those that it does hold must be among them.
    """
    if "values" not in state:
        raise ValueError(f"expected the state of an EWC memory, got the keys {list(state)[:3]}")
    values: dict[str, Any] = json.loads(bytes(state["values"].tolist()))
    if values["format"] not in READABLE:
        raise ValueError(f"expected a state of format {FORMAT}, got {values['format']}")
    wells = [
        _unpack_well(prefix, state, bottom)
        for prefix, bottom in zip(_prefixes(values), values["bottoms"], strict=True)
    ]
    for well in wells:
        _check_shapes(well, parameters)
    if values["keep_tasks"] != keep_tasks:
        raise ValueError(
            f"the state is of a memory with keep_tasks={values['keep_tasks']}, not {keep_tasks}"
        )
    return wells[0], dict(zip(values["tasks"], wells[1:], strict=False)), values


def _prefixes(values: Mapping[str, Any]) -> list[str]:
    return ["total", *(f"task.{number}" for number in range(len(values["bottoms"]) - 1))]


def _pack_well(prefix: str, well: Well) -> dict[str, Tensor]:
    return {
        f"{prefix}.{field}.{name}": tensor.clone().contiguous()
        for field in FIELDS
        for name, tensor in getattr(well, field).items()
    }


def _unpack_well(prefix: str, state: Mapping[str, Tensor], bottom: float) -> Well:
    fields: dict[str, dict[str, Tensor]] = {
        field: {
            key.removeprefix(start): tensor.clone()
            for key, tensor in state.items()
            if key.startswith(start)
        }
        for field in FIELDS
        for start in [f"{prefix}.{field}."]
    }
    return Well(bottom=bottom, **fields)


def _check_shapes(well: Well, parameters: Mapping[str, Tensor]) -> None:
    if well.precision.keys() != well.anchor.keys():
        raise ValueError(
            "the state is incomplete: expected a precision and an anchor for each parameter held"
        )
    for field in FIELDS:
        for name, tensor in getattr(well, field).items():
            shape = tuple(parameters[name].shape) if name in parameters else None
            if shape != tuple(tensor.shape):
                now = "absent or left out" if shape is None else f"of shape {shape}"
                raise ValueError(
                    "the state is of another architecture: "
                    f"{name!r} was of shape {tuple(tensor.shape)} and is {now}"
                )
