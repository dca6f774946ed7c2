"""The optimizers that a memory is attached to."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import Optimizer

from ewc.pull import Pull
from ewc.pull_checks import OwnerCheck
from ewc.pull_state import PullState
from ewc.step_size import How


class Attachments:
    """The pulls of one memory, by optimizer. The optimizers are not kept alive."""

    def __init__(self) -> None:
        self._pulls: WeakKeyDictionary[Optimizer, Pull] = WeakKeyDictionary()
        self._warned: set[str] = set()  # the warnings given, each of which is given once
        self._owner_check = OwnerCheck()

    def __getitem__(self, optimizer: Optimizer) -> Pull:
        return self._pulls[optimizer]

    def __len__(self) -> int:
        return len(self._pulls)

    def attach(
        self,
        optimizer: Optimizer,
        how: How,
        parameters: Iterable[Tensor],
        start_pull: Callable[[], PullState],
        before_step: Callable[[], None],
        compiled: bool = False,
    ) -> Pull:
        """Attach the memory to an optimizer.

        Args:
            optimizer: an optimizer of some of the parameters, or a wrapper around one.
            how: `"proximal"` or `"gradient"`.
            parameters: the parameters by which the memory's weights are moved.
            start_pull: called at every step; returns what to pull with.
            before_step: called before every step.
            compiled: whether to pull with compiled kernels.
        """
        optimizer = getattr(optimizer, "optimizer", optimizer)  # inside a trainer's wrapper
        previous = self._pulls.get(optimizer)
        if previous is not None and previous.attached:
            raise RuntimeError(
                "this memory is already attached to this optimizer; call remove() on the handle "
                "first"
            )
        selected = {id(p) for p in parameters}
        if not any(id(p) in selected for group in optimizer.param_groups for p in group["params"]):
            raise ValueError(
                "expected an optimizer of the memory's parameters, but it has none of them"
            )
        self._pulls[optimizer] = Pull(
            optimizer, how, start_pull, self._warned, before_step, compiled=compiled
        )
        return self._pulls[optimizer]

    def check_owners(self, state: PullState) -> None:
        """Warn once of each protected parameter that no attached optimizer has."""
        self._owner_check.check(self._attached(), state, self._warned)

    def _attached(self) -> Iterator[Optimizer]:
        return (optimizer for optimizer, pull in self._pulls.items() if pull.attached)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pulls": dict(self._pulls)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pulls = WeakKeyDictionary(state["_pulls"])
