"""RMSProp as the paper's agent has it: the rate of no weight is above a maximum.

    v ← α v + (1 − α) g²,   m ← α m + (1 − α) g,   θ ← θ − η g / √(v − m² + ε²),   ε = η / maximum

As in the reference implementation ε is inside the root, where it also spares us the roots of zero,
which take CPUs several times as long: about half of the weights belong to units that are dead.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ewc.step_size import ParamGroup, ParamState, StepSize, moments


class CappedRMSProp(Optimizer):
    """Centered RMSProp with a maximum rate."""

    def __init__(
        self, parameters: list[nn.Parameter], *, lr: float, max_lr: float, alpha: float = 0.95
    ) -> None:
        super().__init__(parameters, {"lr": lr, "max_lr": max_lr, "alpha": alpha})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # it needs no closure
        """Move all weights that have a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            states = [self._state(parameter) for parameter in parameters]
            gradients = [parameter.grad for parameter in parameters]
            squares = [state["square_avg"] for state in states]
            means = [state["grad_avg"] for state in states]
            torch._foreach_mul_(squares, group["alpha"])
            torch._foreach_addcmul_(squares, gradients, gradients, 1 - group["alpha"])
            torch._foreach_lerp_(means, gradients, 1 - group["alpha"])
            torch._foreach_addcdiv_(
                parameters, gradients, _roots(group, squares, means), -group["lr"]
            )

    def step_size(
        self, group: ParamGroup, parameters: Sequence[Tensor], states: Sequence[ParamState]
    ) -> StepSize:
        """η / √(v − m² + ε²) of each weight, for the proximal pull of EWC."""
        squares, means = (moments(key, parameters, states) for key in ("square_avg", "grad_avg"))
        return StepSize(group["lr"], _roots(group, squares, means))

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["square_avg"] = torch.zeros_like(parameter)
            state["grad_avg"] = torch.zeros_like(parameter)
        return state


def _roots(group: ParamGroup, squares: list[Tensor], means: list[Tensor]) -> list[Tensor]:
    """√(v − m² + ε²)."""
    roots = list(torch._foreach_addcmul(squares, means, means, value=-1))
    torch._foreach_clamp_min_(roots, 0.0)  # rounding may have gone below
    torch._foreach_add_(roots, (group["lr"] / group["max_lr"]) ** 2)
    torch._foreach_sqrt_(roots)
    return roots
