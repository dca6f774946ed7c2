"""Noise on the weights, shaped by the Fisher or not: how sensitive is what was learned?

The three shapes of the paper's figure on sensitivity. Whatever the shape, `scale` is the root mean
square of the noise over all selected weights: equal scales are perturbations of equal size.
"""

import math
from collections.abc import Mapping
from typing import Literal, Self, get_args

import torch
from torch import Generator, Tensor, nn

from ewc.parameters import ParameterSelection, select_parameters
from ewc.wells import check_precision

Shape = Literal["uniform", "inverse-fisher", "nullspace"]


def perturbed(
    model: nn.Module,
    fisher: Mapping[str, Tensor],
    scale: float,
    *,
    shape: Shape = "uniform",
    damping: float = 1e-3,
    tolerance: float = 1e-6,
    parameters: ParameterSelection = None,
    generator: Generator | None = None,
) -> "Perturbation":
    """Return a context manager in which the weights carry zero-mean Gaussian noise.

        noise = perturbed(model, fisher, 0.01, shape="inverse-fisher")
        for observation in episode:
            with noise:  # drawn anew at every entry; on leaving, the weights are back bit for bit
                act(model(observation))

    The variance of a weight's noise is proportional to

    - `"uniform"`: 1, the same for all weights;
    - `"inverse-fisher"`: 1 / (F + λ), with λ = `damping` · (mean F);
    - `"nullspace"`: 1 where F <= `tolerance` · (mean F), and 0 elsewhere;

    and scaled so that its mean over the selected weights is `scale`². Without `parameters`, these
    are the weights that `fisher` knows.
    """
    if not (math.isfinite(scale) and scale >= 0):
        raise ValueError(f"expected a finite scale >= 0, got {scale}")
    if parameters is None:
        selected = select_parameters(model, fisher.__contains__)
    else:
        selected = select_parameters(model, parameters)
        fisher = {name: fisher[name] for name in selected if name in fisher}
    check_precision(fisher, selected, what="Fisher")
    fisher = {name: fisher[name].detach().to(p.device) for name, p in selected.items()}
    variance = noise_variance(fisher, shape, damping, tolerance)
    deviation = {name: (scale**2 * v).sqrt() for name, v in variance.items()}
    return Perturbation(selected, deviation, generator)


def noise_variance(
    fisher: Mapping[str, Tensor], shape: Shape, damping: float, tolerance: float
) -> dict[str, Tensor]:
    """Return the variance of each weight's noise, with mean 1 over all weights."""
    mean_fisher = _mean(fisher)
    if shape == "uniform":
        variance = {name: torch.ones_like(f) for name, f in fisher.items()}
    elif shape == "inverse-fisher":
        if not (math.isfinite(damping) and damping > 0):
            raise ValueError(f"expected a finite damping > 0, got {damping}")
        # Over (mean F) to stay in range; a Fisher that is zero everywhere makes all weights equal.
        unit = mean_fisher or 1.0
        variance = {name: 1 / (f / unit + damping) for name, f in fisher.items()}
    elif shape == "nullspace":
        variance = {name: (f <= tolerance * mean_fisher).to(f) for name, f in fisher.items()}
    else:
        raise ValueError(f"expected one of {get_args(Shape)}, got shape={shape!r}")
    mean_variance = _mean(variance)
    if mean_variance == 0:
        raise ValueError(
            f"the Fisher has no null space: no weight has F <= {tolerance} of the mean; "
            "a larger tolerance may find some"
        )
    return {name: v / mean_variance for name, v in variance.items()}


class Perturbation:
    """Noise of a given standard deviation a weight, drawn anew at every entry into `with`."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        deviation: Mapping[str, Tensor],
        generator: Generator | None,
    ) -> None:
        self._parameters = parameters
        self._deviation = deviation
        self._generator = generator
        self._original: dict[str, Tensor] | None = None

    @torch.no_grad()
    def __enter__(self) -> Self:
        if self._original is not None:
            raise RuntimeError("this perturbation is on already; leave its `with` block first")
        noise = {name: self._draw(deviation) for name, deviation in self._deviation.items()}
        self._original = {name: p.detach().clone() for name, p in self._parameters.items()}
        try:
            for name, parameter in self._parameters.items():
                parameter.copy_(parameter + noise[name])
        except BaseException:  # an interrupt too: a `with` that was not entered is never left
            self.__exit__()
            raise
        return self

    @torch.no_grad()
    def __exit__(self, *exception: object) -> None:
        original, self._original = self._original, None
        for name, tensor in (original or {}).items():
            self._parameters[name].copy_(tensor)

    def _draw(self, deviation: Tensor) -> Tensor:
        device = deviation.device if self._generator is None else self._generator.device
        noise = torch.randn(
            deviation.shape, dtype=deviation.dtype, device=device, generator=self._generator
        )
        return noise.to(deviation.device) * deviation


def _mean(tensors: Mapping[str, Tensor]) -> float:
    total = sum(float(tensor.sum()) for tensor in tensors.values())
    return total / sum(tensor.numel() for tensor in tensors.values())
