"""The optimizer's second moments as a Fisher that costs nothing (arXiv 2507.18807).

Adam, AdamW and RMSprop keep a running mean v of squared gradients, which starts at zero; without
that bias it is v̂ = v / (1 − βᵗ). The gradients are means over batches of B samples. If the samples
are independent and their mean gradient is ḡ, then

    E[v̂] = ḡ² + (F − ḡ²) / B

with F the empirical Fisher: v̂ is smaller than F by about the batch size, and mixed with ḡ², which
vanishes only at a minimum.
"""

import math

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer, RMSprop

from ewc.parameters import ParameterSelection, at_least_float32, select_parameters, widened


def second_moments(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    batch_size: int = 1,
    parameters: ParameterSelection = None,
) -> dict[str, Tensor]:
    """Return the bias-corrected second moments of the gradients, one value per weight.

    They are squares of the gradients of batches, not of samples: smaller than the empirical Fisher
    by about the batch size, and mixed with the mean gradient. They are a mean over the last steps,
    1 / (1 − β₂) of them, at the weights of those steps, and see the gradients as the optimizer
    does: clipped, with the weight decay of Adam and RMSprop (not AdamW), and with the pull if it is
    attached with `how="gradient"`.

    Args:
        model: the model that the optimizer trains.
        optimizer: Adam, AdamW or RMSprop, after some steps.
        batch_size: samples per step, in all ranks and accumulated batches together. The moments
            are multiplied by it, which makes λ comparable with that of an empirical Fisher.
        parameters: which parameters, as for `EWC`.

    Returns:
        One tensor per parameter, by name, at least float32; zeros where there was never a gradient.

    Example:
        >>> import torch, ewc
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = torch.optim.Adam(model.parameters())
        >>> model(torch.randn(8, 4)).square().mean().backward()
        >>> optimizer.step()
        >>> memory = ewc.EWC(model, strength=100.0)
        >>> memory.anchor(ewc.importances.second_moments(model, optimizer, batch_size=8), task="A")
    """
    if not (math.isfinite(batch_size) and batch_size > 0):
        raise ValueError(f"expected batch_size > 0, got {batch_size}")
    optimizer = getattr(optimizer, "optimizer", optimizer)  # inside a trainer's wrapper
    if not isinstance(optimizer, Adam | RMSprop):
        raise ValueError(
            "expected Adam, AdamW or RMSprop, whose state has second moments, got "
            f"{type(optimizer).__name__}: use ewc.fisher_diagonal"
        )
    selected = select_parameters(model, parameters)
    decays = {
        id(parameter): group["alpha"] if isinstance(optimizer, RMSprop) else group["betas"][1]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for name, parameter in selected.items():
        if id(parameter) not in decays:
            raise ValueError(
                f"expected an optimizer of {name!r}, but it does not have this parameter: leave it "
                f"out with parameters='!{name}'"
            )
    if not any(optimizer.state.get(parameter) for parameter in selected.values()):
        raise ValueError("expected an optimizer after its first step, but it has no state yet")
    key = "square_avg" if isinstance(optimizer, RMSprop) else "exp_avg_sq"
    return {
        name: batch_size * _unbiased(p, optimizer, key, float(decays[id(p)]))
        for name, p in selected.items()
    }


def _unbiased(parameter: nn.Parameter, optimizer: Optimizer, key: str, decay: float) -> Tensor:
    """Return v̂ = v / (1 − decayᵗ) of one parameter."""
    state = optimizer.state.get(parameter)
    if not state:
        return torch.zeros_like(
            parameter, dtype=at_least_float32(parameter.dtype), requires_grad=False
        )
    correction: float = 1 - decay ** float(state["step"])
    return widened(state[key].detach()) / correction
