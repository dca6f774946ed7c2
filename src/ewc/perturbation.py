"""Noise on the weights, shaped by the Fisher or not: how sensitive is what was learned?

These are the three shapes of the paper's figure on sensitivity. For every shape, `scale` is the
root mean square of the noise over all selected weights, so that equal scales are perturbations of
equal size.
"""

import math
from collections.abc import Mapping
from typing import Literal, Self, get_args

import torch
from torch import Generator, Tensor, nn

from ewc.curvature.wells import check_precision
from ewc.distributed.shards import is_sharded
from ewc.parameters import ParameterSelection, select_parameters

NoiseShape = Literal["uniform", "inverse-fisher", "nullspace"]


def perturbed(
    model: nn.Module,
    fisher: Mapping[str, Tensor],
    scale: float,
    *,
    shape: NoiseShape = "uniform",
    damping: float = 1e-3,
    tolerance: float = 1e-6,
    parameters: ParameterSelection = None,
    generator: Generator | None = None,
) -> "Perturbation":
    """Return a context manager in which Gaussian noise of mean zero is added to the weights.

    The noise is drawn at every entry. After the `with` block the weights are restored bit for bit.
    The variance of a weight's noise is scaled so that its mean over the selected weights is
    `scale`². Before that it is

    - for `"uniform"`: 1, the same for all weights;
    - for `"inverse-fisher"`: 1 / (F + λ), with λ = `damping` · (mean F);
    - for `"nullspace"`: 1 where F <= `tolerance` · (mean F), and 0 elsewhere.

    Args:
        model: the model whose weights are perturbed.
        fisher: a Fisher of the model, as `fisher_diagonal` returns it.
        scale: root mean square of the noise.
        shape: how the noise is distributed over the weights.
        damping: for `"inverse-fisher"`.
        tolerance: for `"nullspace"`.
        parameters: which parameters to perturb; by default those in `fisher`.
        generator: the source of the noise.

    Example:
        >>> import torch, ewc
        >>> model = torch.nn.Linear(4, 3)
        >>> inputs = torch.randn(8, 4)
        >>> fisher = ewc.fisher_diagonal(model, [inputs])
        >>> with ewc.perturbed(model, fisher, 0.01, shape="inverse-fisher"):
        ...     outputs = model(inputs)
    """
    if not (math.isfinite(scale) and scale >= 0):
        raise ValueError(f"expected a finite scale >= 0, got {scale}")
    if parameters is None:
        selected = select_parameters(model, fisher.__contains__)
    else:
        selected = select_parameters(model, parameters)
        fisher = {name: fisher[name] for name in selected if name in fisher}
    if any(map(is_sharded, selected.values())):
        raise TypeError("noise cannot be added to sharded parameters: use a model that is whole")
    check_precision(fisher, selected, what="Fisher")
    fisher = {name: fisher[name].detach().to(p.device) for name, p in selected.items()}
    variance = noise_variance(fisher, shape, damping, tolerance)
    deviation = {name: (scale**2 * v).sqrt() for name, v in variance.items()}
    return Perturbation(selected, deviation, generator)


def noise_variance(
    fisher: Mapping[str, Tensor], shape: NoiseShape, damping: float, tolerance: float
) -> dict[str, Tensor]:
    """Return the variance of each weight's noise, with mean 1 over all weights; see `perturbed`."""
    mean_fisher = _mean(fisher)
    if shape == "uniform":
        variance = {name: torch.ones_like(f) for name, f in fisher.items()}
    elif shape == "inverse-fisher":
        if not (math.isfinite(damping) and damping > 0):
            raise ValueError(f"expected a finite damping > 0, got {damping}")
        # In units of (mean F) to stay in range. If F is zero everywhere, all weights are equal.
        unit = mean_fisher or 1.0
        variance = {name: 1 / (f / unit + damping) for name, f in fisher.items()}
    elif shape == "nullspace":
        variance = {name: (f <= tolerance * mean_fisher).to(f) for name, f in fisher.items()}
    else:
        raise ValueError(f"expected one of {get_args(NoiseShape)}, got shape={shape!r}")
    mean_variance = _mean(variance)
    if mean_variance == 0:
        raise ValueError(
            f"the Fisher has no null space: no weight has F <= {tolerance} of the mean; "
            "try a larger tolerance"
        )
    return {name: v / mean_variance for name, v in variance.items()}


class Perturbation:
    """Noise on the weights, drawn again at every entry into the `with` block.

    Args:
        parameters: the parameters to perturb, by name.
        deviation: the standard deviation of each weight's noise.
        generator: the source of the noise.
    """

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
            raise RuntimeError("this perturbation is already active; leave its `with` block first")
        noise = {name: self._draw(deviation) for name, deviation in self._deviation.items()}
        self._original = {name: p.detach().clone() for name, p in self._parameters.items()}
        try:
            for name, parameter in self._parameters.items():
                parameter.copy_(parameter + noise[name])
        except (
            BaseException
        ):  # also an interrupt: a `with` block that was not entered is never left
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
