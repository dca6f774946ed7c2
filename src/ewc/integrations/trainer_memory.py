"""What every trainer does with a memory: attach it, restore it, consolidate at the end."""

import re
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any, TypeAlias

from torch.optim import Optimizer

from ewc.memory import EWC
from ewc.pull import Pull
from ewc.step_size import How
from ewc.warnings import warn

Consolidation: TypeAlias = bool | Mapping[str, Any]
DEFAULT_NAME = "ewc"


class TrainerMemory:
    """A memory inside of a trainer.

    Args:
        memory: the memory, of the model that is trained or of a part of it.
        how: how it pulls, see `EWC.attach`.
        consolidate: whether to consolidate at the end of training; or the options for it.
        compiled: whether to pull with compiled kernels, see `EWC.attach`.
        name: the name under which it is saved.
    """

    def __init__(
        self,
        memory: EWC,
        how: How,
        consolidate: Consolidation,
        compiled: bool = False,
        name: str = DEFAULT_NAME,
    ) -> None:
        if not isinstance(memory, EWC):
            raise TypeError(f"expected an ewc.EWC as the memory, got {type(memory).__name__}")
        if not re.fullmatch(r"[\w .-]+", name):
            raise ValueError(
                "expected a name that can be part of a file's name, of letters, digits, spaces, "
                f"'.', '-' and '_', got {name!r}"
            )
        self.memory, self.name = memory, name
        self._how, self._compiled = how, compiled
        self._options = _consolidation_options(consolidate)
        self._pulls: list[Pull] = []

    def check_name(self, memories: Sequence["TrainerMemory"]) -> None:
        """Raise if one of a trainer's memories has the name of another; then none is attached.

        Args:
            memories: all memories of the trainer, this one among them.
        """
        if sum(memory.name == self.name for memory in memories) > 1:
            for memory in memories:
                memory.stop()
            raise ValueError(
                "expected a name of its own for each memory in a trainer, under which it is saved, "
                f"got {self.name!r} twice: give each a name with EWCCallback(memory, name=...)"
            )

    def start(self, optimizers: Iterable[Optimizer]) -> None:
        """Attach the memory to those optimizers that have parameters of it.

        Raises if there is none, if one of them cannot be pulled, or if the task to consolidate at
        the end is there already; then it is attached to none.
        """
        self.stop()  # a run that ended with an error is still attached
        if self._options is not None:
            self.memory._wells.new_name(self._options.get("task"))  # raises if it is taken
        owners = self._owners(list(optimizers))
        try:
            for optimizer in owners:
                pull = self.memory.attach(optimizer, how=self._how, compiled=self._compiled)
                self._pulls.append(pull)
        except Exception:
            self.stop()
            raise

    def stop(self) -> None:
        """Detach the memory."""
        for pull in self._pulls:
            pull.remove()
        self._pulls = []

    def finish(self, batches: Iterable[Any]) -> None:
        """Detach the memory, and consolidate if that was asked for."""
        self.stop()
        if self._options is not None:
            self.memory.consolidate(batches, **self._options)

    def check_resumed(self, why: str) -> None:
        """Complain that training is resumed, but the checkpoint's memory was not restored.

        Args:
            why: the reason, as the beginning of a sentence.
        """
        if not self.memory.tasks and self._options is None:
            raise RuntimeError(
                f"{why}, and the memory given has no task: nothing would pull on the weights. "
                "Consolidate or load the memory before training is resumed, or resume from a "
                "checkpoint that was saved with this callback"
            )
        warn(
            f"{why}: training is resumed with the memory as it was given, "
            f"with the tasks {list(self.memory.tasks)}"
        )

    def _owners(self, optimizers: list[Optimizer]) -> list[Optimizer]:
        """Return the optimizers that have parameters of the memory."""
        selected = {id(p) for p in self.memory._parameters.optimized()}
        owners = [
            optimizer
            for optimizer in optimizers
            if any(id(p) in selected for group in optimizer.param_groups for p in group["params"])
        ]
        if not owners:
            raise ValueError(
                "expected the memory of the model that is trained, but the trainer's optimizer has "
                "none of its parameters: was the model made anew, or wrapped, after the memory?"
            )
        return owners


def _consolidation_options(consolidate: Consolidation) -> dict[str, Any] | None:
    """Return the options for `EWC.consolidate`, or None; raise for unknown ones."""
    if isinstance(consolidate, bool):
        return {} if consolidate else None
    known = [name for name in signature(EWC.consolidate).parameters if name != "self"][1:]
    for name in consolidate:
        if name not in known:
            raise ValueError(
                f"expected options of memory.consolidate() ({', '.join(known)}), got {name!r}"
            )
    return dict(consolidate)
