"""Which weights a task ends with: the best on validation, or a mean of late ones."""

import math

import torch
from torch import Tensor, nn


class EarlyStopping:
    """The rule of the paper's appendix, for one task.

    It looks at the validation error over all tasks so far, at the end of every segment. When the
    error has been above its lowest value more than `PATIENCE` times in a row, the task ends, and
    the weights are set back to those of the lowest error.
    """

    PATIENCE = 5

    def __init__(self) -> None:
        self.lowest = math.inf
        self.increases = 0
        self.best: dict[str, Tensor] = {}

    def observe(self, error: float, model: nn.Module) -> bool:
        """Note an error; return whether the task ends."""
        if error <= self.lowest:
            self.lowest, self.increases = error, 0
            self.best = {name: w.detach().clone() for name, w in model.state_dict().items()}
        else:
            self.increases += 1
        return self.increases > self.PATIENCE

    def state_dict(self) -> dict[str, object]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, object]) -> None:
        vars(self).update(state)


class WeightAverage:
    """The running mean of the weights: mean ← mean + (θ − mean) / n."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, model: nn.Module) -> None:
        weights = {name: w.detach() for name, w in model.named_parameters()}
        self.count += 1
        if self.count == 1:
            self.mean = {name: w.clone() for name, w in weights.items()}
        torch._foreach_lerp_(list(self.mean.values()), list(weights.values()), 1 / self.count)

    def state_dict(self) -> dict[str, object]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, object]) -> None:
        vars(self).update(state)
