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

FORMAT = 1
Shapes = Mapping[str, list[int]]


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
    state: Mapping[str, Tensor], shapes: Shapes, *, keep_tasks: bool
) -> tuple[Well, dict[str, Well], dict[str, Any]]:
    """Return the total well, the kept ones and the plain values; raise at the first mismatch."""
    if "values" not in state:
        raise ValueError(f"expected the state of an EWC memory, got the keys {list(state)[:3]}")
    values: dict[str, Any] = json.loads(bytes(state["values"].tolist()))
    if values["format"] != FORMAT:
        raise ValueError(f"expected state format {FORMAT}, got {values['format']}")
    _check_shapes(values["shapes"], shapes)
    if values["keep_tasks"] != keep_tasks:
        raise ValueError(
            f"the state is of a memory with keep_tasks={values['keep_tasks']}, not {keep_tasks}"
        )
    bottoms = values["bottoms"]
    total = _unpack_well("total", state, shapes, bottoms[0])
    kept = {
        task: _unpack_well(f"task.{number}", state, shapes, bottom)
        for number, (task, bottom) in enumerate(zip(values["tasks"], bottoms[1:], strict=False))
    }
    return total, kept, values


def _pack_well(prefix: str, well: Well) -> dict[str, Tensor]:
    fields = {"precision": well.precision, "anchor": well.anchor}
    return {
        f"{prefix}.{field}.{name}": tensor.clone().contiguous()
        for field, tensors in fields.items()
        for name, tensor in tensors.items()
    }


def _unpack_well(prefix: str, state: Mapping[str, Tensor], shapes: Shapes, bottom: float) -> Well:
    start = f"{prefix}.precision."
    names = [key.removeprefix(start) for key in state if key.startswith(start)]
    for name in names:
        for field in ("precision", "anchor"):
            _check_shape(name, list(state[f"{prefix}.{field}.{name}"].shape), shapes.get(name))
    precision = {name: state[f"{prefix}.precision.{name}"].clone() for name in names}
    anchor = {name: state[f"{prefix}.anchor.{name}"].clone() for name in names}
    return Well(precision, anchor, bottom)


def _check_shapes(saved: Shapes, now: Shapes) -> None:
    for name in {**saved, **now}:
        _check_shape(name, saved.get(name), now.get(name))


def _check_shape(name: str, saved: list[int] | None, now: list[int] | None) -> None:
    if saved != now:
        raise ValueError(
            f"the state is of another architecture: {name!r} was {_told(saved)} and is {_told(now)}"
        )


def _told(shape: list[int] | None) -> str:
    return "absent" if shape is None else f"of shape {tuple(shape)}"
