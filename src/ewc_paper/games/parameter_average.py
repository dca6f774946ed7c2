"""A running average of the parameters over the last updates.

Q-learning keeps oscillating, and the policy of one moment can be far worse than the average's.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class ParameterAverage:
    """The mean over the first `span` updates, and an exponential average from then on.

    With a span of 0 nothing is averaged, and the parameters always stay as they are.
    """

    def __init__(self, span: int) -> None:
        self._span = span
        self.restart()

    def restart(self) -> None:
        """Forget all updates."""
        self._average: list[Tensor] = []
        self._updates = 0  # that the average is over, at most the span

    @torch.no_grad()
    def update(self, parameters: Iterable[Tensor]) -> None:
        """Include the present parameters."""
        if self._span == 0:
            return
        present = list(parameters)
        if self._updates == 0:
            self._average = [torch.zeros_like(parameter) for parameter in present]
        self._updates = min(self._updates + 1, self._span)
        torch._foreach_lerp_(self._average, present, 1 / self._updates)

    @contextmanager
    def applied(self, parameters: list[Tensor]) -> Iterator[None]:
        """Replace the parameters by their average while the block runs."""
        if self._updates == 0:
            yield
            return
        present = [parameter.detach().clone() for parameter in parameters]
        copy_parameters(self._average, parameters)
        try:
            yield
        finally:
            copy_parameters(present, parameters)

    def adopt(self, parameters: list[Tensor]) -> None:
        """Replace the parameters by their average, and restart it."""
        if self._updates > 0:
            copy_parameters(self._average, parameters)
        self.restart()

    def state_dict(self) -> dict[str, Any]:
        return {
            "average": {str(number): tensor for number, tensor in enumerate(self._average)},
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._average = [state["average"][str(i)] for i in range(len(state["average"]))]
        self._updates = state["updates"]


@torch.no_grad()
def copy_parameters(source: list[Tensor], destination: list[Tensor]) -> None:
    """Copy the values of one list of parameters into those of another."""
    torch._foreach_copy_(destination, source)
