"""A Fisher that was computed before, given to `EWC.consolidate` instead of batches."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

from torch import Tensor

from ewc.dtypes import at_least_float32
from ewc.fisher import fisher_diagonal
from ewc.wells import check_precision


def ready_fisher(
    fisher: Mapping[str, Tensor], options: Mapping[str, Any], parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Check a Fisher that the user gave, and return it on the device of the parameters.

    Args:
        fisher: one tensor per parameter, by name.
        options: the user's options for `fisher_diagonal`; only the defaults are accepted.
        parameters: the selected parameters of the model.
    """
    if not fisher.keys() & parameters.keys():
        raise ValueError(
            "expected a list of batches, or a Fisher keyed by parameter names (such as "
            f"{next(iter(parameters))!r}); got a mapping with the keys {list(fisher)[:3]}"
        )
    for name, value in options.items():
        if value != signature(fisher_diagonal).parameters[name].default:
            raise ValueError(f"{name}={value!r} has no effect on a ready Fisher: leave it out")
    for name, tensor in fisher.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"expected a tensor as the Fisher of {name!r}, got {tensor!r}")
    check_precision(fisher, parameters, what="Fisher")
    return {
        name: fisher[name].detach().to(p.device, at_least_float32(p.dtype))
        for name, p in parameters.items()
    }
