"""`save` and `load` of a memory: one file that can be given to others."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ewc.parameters import ModelParameters, ParameterSelection
from ewc.serialization import keeps_tasks
from ewc.sharding import is_sharded
from ewc.sharing import PrecisionType, Rename, automatic_card, load_state, save_state


class MemoryFiles(ABC):
    """What `EWC` does with files."""

    _parameters: ModelParameters
    _Parameters: ClassVar[type[ModelParameters]] = (
        ModelParameters  # what reads the weights from the model
    )

    @abstractmethod
    def __init__(
        self,
        model: nn.Module,
        *,
        strength: float | None = None,
        parameters: ParameterSelection = None,
        keep_tasks: bool | str | torch.device = False,
    ) -> None: ...

    @property
    @abstractmethod
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks."""

    @abstractmethod
    def state_dict(self) -> dict[str, Tensor]:
        """Return the memory as a flat dict of tensors."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over a saved memory."""

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        precision: PrecisionType = "full",
        anchors: bool = True,
        card: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the memory to a safetensors file, all of it or nothing.

        Args:
            path: the file.
            precision: `"full"` writes the precision as it is, `"bfloat16"` and `"8 bits"` take 2
                bytes and 1 byte per weight and change it by at most 0.4 % and 4.5 %.
            anchors: whether to write the anchors. Without them, the file is for models that have
                exactly the present weights, those of a public checkpoint for example.
            card: what others should know, plain values: `data`, `kind`, `samples`, `notes`. The
                model, the number of parameters, the tasks and the version are added.

        Example:
            >>> import torch, ewc
            >>> memory = ewc.EWC(torch.nn.Linear(4, 3), strength=100.0)
            >>> fisher = memory.consolidate([torch.randn(8, 4)], task="A")
            >>> card = {"data": "random numbers", "kind": "exact", "samples": 8}
            >>> memory.save("memory.safetensors", precision="bfloat16", card=card)
        """
        state, weights = self.state_dict(), self._parameters.all()
        if any(map(is_sharded, state.values())):
            raise ValueError(
                "this process has only shards of the memory: save it with "
                "torch.distributed.checkpoint, and load it with ewc.checkpoint.load_checkpoint"
            )
        names = {key.removeprefix("total.precision.") for key in state} & weights.keys()
        size = sum(weights[name].numel() for name in names)
        card = automatic_card(self._parameters.model, size, self.tasks) | dict(card or {})
        save_state(path, state, weights, precision=precision, anchors=anchors, card=card)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: nn.Module,
        *,
        parameters: ParameterSelection = None,
        keep_tasks: bool | str | torch.device | None = None,
        rename: Rename | None = None,
        grow: bool = False,
    ) -> Self:
        """Return the memory in a file, for a model with the same parameters.

        Args:
            path: a file that `save` wrote.
            model: the model to protect. If the file has no anchors, they are its present weights.
            parameters: which parameters later tasks protect; those in the file must be among them.
            keep_tasks: as in the file by default; a device says where.
            rename: from the parameter names in the file to those of the model, a mapping or a
                function: `lambda name: name.replace(".default.", ".sales.")` for an adapter.
            grow: allow parameters with more rows or columns than in the file, such as those of a
                larger vocabulary. The old part, the leading block, is protected, the rest is free.

        Example:
            >>> import torch, ewc
            >>> model = torch.nn.Linear(4, 3)
            >>> memory = ewc.EWC(model, strength=100.0)
            >>> memory.anchor(1.0, task="A")
            >>> memory.save("memory.safetensors")
            >>> ewc.EWC.load("memory.safetensors", model)
            EWC(strength=100.0, decay=1.0, tasks=['A'])
        """
        weights = cls._Parameters(model, parameters).matching()
        state = load_state(path, weights, rename=rename, grow=grow)
        if keep_tasks is None:
            keep_tasks = keeps_tasks(state)
        memory = cls(model, parameters=parameters, keep_tasks=keep_tasks)
        memory.load_state_dict(state)
        return memory
