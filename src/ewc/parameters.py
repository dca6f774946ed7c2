"""Which weights: parameters chosen by name, the same way for the Fisher, the memory and the noise.

Names are those of `named_parameters()` of the model itself, without the prefixes that wrappers add;
a tied parameter appears once, under its first name.
"""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TypeAlias

from torch import nn

ParameterSelection: TypeAlias = str | Iterable[str] | Callable[[str], bool] | None


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside `DataParallel`, `DistributedDataParallel` and `torch.compile`."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(compiled := getattr(model, "_orig_mod", None), nn.Module):
            model = compiled
        else:
            return model


def select_parameters(
    model: nn.Module, parameters: ParameterSelection = None
) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of `model` that `parameters` names.

    `parameters` is None (all of them), a glob pattern, several patterns, or a function of the name.
    A pattern that starts with "!" leaves its matches out, and alone means "all but these".
    Parameters with `requires_grad=False` are never selected.

        select_parameters(model, "body.*")
        select_parameters(model, ["body.*", "!*.bias"])
        select_parameters(model, "!head.*")
    """
    parameters = as_reusable(parameters)
    matching = matching_parameters(model, parameters)
    selected = {name: p for name, p in matching.items() if p.requires_grad}
    if isinstance(parameters, tuple):
        for pattern in parameters:
            if _hits(pattern, matching) and not _hits(pattern, selected):
                raise ValueError(
                    f"the pattern {pattern!r} matches only frozen parameters; "
                    "set requires_grad=True on them or leave the pattern out"
                )
    if not selected:
        raise ValueError(
            f"expected at least one trainable parameter, but parameters={parameters!r} selects none"
        )
    return selected


def matching_parameters(
    model: nn.Module, parameters: ParameterSelection = None
) -> dict[str, nn.Parameter]:
    """Return the parameters whose names match, frozen ones too."""
    named = dict(unwrap(model).named_parameters())
    parameters = as_reusable(parameters)
    if parameters is None:
        return named
    if callable(parameters):
        return {name: p for name, p in named.items() if parameters(name)}
    for pattern in parameters:
        if not _hits(pattern.removeprefix("!"), named):
            closest = get_close_matches(pattern.removeprefix("!"), named, n=3, cutoff=0.0)
            raise ValueError(
                f"the pattern {pattern!r} matches no parameter name; closest: {', '.join(closest)}"
            )
    unwanted = [pattern[1:] for pattern in parameters if pattern.startswith("!")]
    wanted = [pattern for pattern in parameters if not pattern.startswith("!")]
    if unwanted and not wanted:
        wanted = ["*"]
    chosen = {name for pattern in wanted for name in _hits(pattern, named)}
    left_out = {name for pattern in unwanted for name in _hits(pattern, named)}
    return {name: p for name, p in named.items() if name in chosen - left_out}


def as_reusable(parameters: ParameterSelection) -> tuple[str, ...] | Callable[[str], bool] | None:
    """Return the selection in a form that can be asked again: one-shot iterables become tuples."""
    if parameters is None or callable(parameters):
        return parameters
    return (parameters,) if isinstance(parameters, str) else tuple(parameters)


def _hits(pattern: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if fnmatchcase(name, pattern)]
