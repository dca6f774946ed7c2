"""A memory as a flat dict of tensors, and back.

Every entry is a separate tensor, so that `torch.save` and safetensors accept it as it is. Wells are
under `total.*` and `task.<number>.*`, and all plain values are JSON in the bytes of `values`.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ewc.budget import Budget, FixedStrength
from ewc.task_wells import TaskWells
from ewc.wells import Well

FORMAT = 4
READABLE = (1, 2, 3, 4)  # the first had no remainders, the second no budget, the third no "auto"
FIELDS = ("precision", "anchor", "remainder")


def pack(wells: TaskWells, control: FixedStrength | Budget) -> dict[str, Tensor]:
    """Return the wells and the strength or budget of a memory as one flat dict of tensors."""
    state = _pack_well("total", wells.total)
    for number, well in enumerate(wells.kept.values()):
        state |= _pack_well(f"task.{number}", well)
    values = {
        "format": FORMAT,
        "strength": control.strength,
        "budget": asdict(control) if isinstance(control, Budget) else None,
        "decay": wells.decay,
        "keep_tasks": wells.keep_tasks,
        "tasks": list(wells.tasks),
        "bottoms": [wells.total.bottom, *(well.bottom for well in wells.kept.values())],
    }
    state["values"] = torch.tensor(list(json.dumps(values).encode()), dtype=torch.uint8)
    return state


def unpack(
    state: Mapping[str, Tensor], wells: TaskWells, parameters: Mapping[str, Tensor]
) -> tuple[TaskWells, FixedStrength | Budget]:
    """Return the wells and the strength or budget of a saved memory; raise at the first mismatch.

    Args:
        state: what `pack` returned.
        wells: those of the memory that the state is loaded into.
        parameters: all parameters that the memory selects. The saved ones must be among them.
    """
    values = _values(state)
    if values["format"] not in READABLE:
        raise ValueError(f"expected a state of format {FORMAT}, got {values['format']}")
    total, *kept = (
        _unpack_well(prefix, state, bottom)
        for prefix, bottom in zip(_prefixes(values), values["bottoms"], strict=True)
    )
    for well in (total, *kept):
        _check_shapes(well, parameters)
    if values["keep_tasks"] != wells.keep_tasks:
        raise ValueError(
            f"the state is of a memory with keep_tasks={values['keep_tasks']}, "
            f"not {wells.keep_tasks}"
        )
    kept_by_task = dict(zip(values["tasks"], kept, strict=False))
    loaded = wells.loaded(values["decay"], values["tasks"], total, kept_by_task, parameters)
    return loaded, _control(values)


def _control(values: Mapping[str, Any]) -> FixedStrength | Budget:
    budget = values.get("budget")  # absent in formats 1 and 2
    return FixedStrength(values["strength"]) if budget is None else Budget(**budget)


def parameter_name(key: str) -> str:
    """Return the parameter that an entry of a state belongs to; "" for one that belongs to none."""
    match = re.fullmatch(rf"(?:total|task\.\d+)\.(?:{'|'.join(FIELDS)})\.(.+)", key)
    return match[1] if match else ""


def keeps_tasks(state: Mapping[str, Tensor]) -> bool:
    """Return whether a saved memory kept each task's own well."""
    return bool(_values(state)["keep_tasks"])


def _values(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the plain values of a saved memory."""
    if "values" not in state:
        raise ValueError(f"expected the state of an EWC memory, got the keys {list(state)[:3]}")
    values: dict[str, Any] = json.loads(bytes(state["values"].tolist()))
    return values


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
            "the state is incomplete: expected a precision and an anchor for each parameter"
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
