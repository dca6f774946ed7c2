"""Selecting parameters by name, in the same way for the Fisher, the memory and the noise.

Names are those of `named_parameters()` of the model itself, without the prefixes that wrappers add.
A tied parameter appears once, under its first name, and is selected by any of its names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from typing import TypeAlias

import torch
from torch import Tensor, nn

from ewc.distributed.shards import refuse_deepspeed, refuse_fsdp1, sharded_parameters


@cache
def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return `dtype`, or float32 where `dtype` is less precise.

    In half precision the squares of small gradients vanish, and so do small steps of the weights.
    """
    return torch.promote_types(dtype, torch.float32)


def widened(tensor: Tensor) -> Tensor:
    """Return the tensor in at least float32; the tensor itself if that is its dtype."""
    return tensor.to(at_least_float32(tensor.dtype))


ParameterSelection: TypeAlias = str | Iterable[str] | Callable[[str], bool] | None


def wrappers(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the model and what is inside `DataParallel`, `DistributedDataParallel`, `compile`."""
    inner: object = model
    while isinstance(inner, nn.Module):
        yield inner
        wrapped = isinstance(inner, nn.DataParallel | nn.parallel.DistributedDataParallel)
        inner = inner.module if wrapped else getattr(inner, "_orig_mod", None)


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside `DataParallel`, `DistributedDataParallel` and `torch.compile`."""
    *_, innermost = wrappers(model)
    return innermost


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return all parameters of the model inside its wrappers, by name; sharded ones as shards."""
    model = unwrap(model)
    sharded = sharded_parameters(model)
    return {name: sharded.get(id(p), p) for name, p in model.named_parameters()}


def name_before_peft(name: str) -> str:
    """Return the name that a weight had before `get_peft_model` wrapped the model."""
    return name.removeprefix("base_model.model.").replace(".base_layer.", ".")


def select_parameters(
    model: nn.Module, parameters: ParameterSelection = None
) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of `model` that are selected, by name.

    Parameters with `requires_grad=False` are never selected.

    Args:
        model: any module.
        parameters: None (all parameters), a glob pattern, several patterns, or a function of the
            name. A pattern that starts with "!" excludes its matches; without any other pattern
            it means "all but these".

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
        >>> list(select_parameters(model, ["0.*", "!*.bias"]))
        ['0.weight']
        >>> list(select_parameters(model, "!0.*"))
        ['1.weight', '1.bias']
    """
    refuse_fsdp1(model)
    refuse_deepspeed(model=model)
    parameters = as_reusable(parameters)
    matching = matching_parameters(model, parameters)
    selected = {name: p for name, p in matching.items() if p.requires_grad}
    if isinstance(parameters, tuple):
        for pattern in parameters:
            if _matches(pattern, matching) and not _matches(pattern, selected):
                raise ValueError(
                    f"the pattern {pattern!r} matches only frozen parameters; "
                    "set requires_grad=True on them or leave the pattern out"
                )
    if not selected and matching:
        which = "all parameters" if parameters is None else f"those of parameters={parameters!r}"
        raise ValueError(
            f"expected at least one trainable parameter, but {which} are frozen "
            "(requires_grad=False), as after merge_and_unload of PEFT: call "
            "model.requires_grad_(True), or set it for those that are to be trained"
        )
    if not selected:
        raise ValueError(
            f"expected at least one trainable parameter, but parameters={parameters!r} selects none"
        )
    for name, parameter in selected.items():
        if parameter.device.type == "meta":
            raise ValueError(
                f"{name!r} is on the device 'meta', so it has a shape but no values: load the "
                "weights first (model.to_empty(device=...) and load_state_dict, or "
                "from_pretrained without a meta device)"
            )
    return selected


def matching_parameters(
    model: nn.Module, parameters: ParameterSelection = None
) -> dict[str, nn.Parameter]:
    """Return the parameters whose names are selected, including frozen ones."""
    named = named_parameters(model)
    parameters = as_reusable(parameters)
    if parameters is None:
        return named
    first = {id(p): name for name, p in unwrap(model).named_parameters()}
    names = {
        name: first[id(p)] for name, p in unwrap(model).named_parameters(remove_duplicate=False)
    }
    if callable(parameters):
        chosen = {names[name] for name in names if parameters(name)}
        return {name: p for name, p in named.items() if name in chosen}
    for pattern in parameters:
        if not _matches(pattern.removeprefix("!"), names):
            closest = get_close_matches(pattern.removeprefix("!"), names, n=3, cutoff=0.0)
            raise ValueError(
                f"the pattern {pattern!r} matches no parameter name; closest: {', '.join(closest)}"
            )
    excluding = [pattern[1:] for pattern in parameters if pattern.startswith("!")]
    including = [pattern for pattern in parameters if not pattern.startswith("!")]
    if excluding and not including:
        including = ["*"]
    included = {names[name] for pattern in including for name in _matches(pattern, names)}
    excluded = {names[name] for pattern in excluding for name in _matches(pattern, names)}
    return {name: p for name, p in named.items() if name in included - excluded}


class ModelParameters:
    """The parameters of one model, and the selection of those that matter.

    They are read from the model at each call, because a model may grow or move. A subclass may put
    weights that are computed from parameters in the place of these.
    """

    def __init__(self, model: nn.Module, selection: ParameterSelection) -> None:
        self.model = unwrap(model)
        self._selection = as_reusable(selection)

    def all(self) -> Mapping[str, Tensor]:
        """Return all parameters of the model, by name."""
        return named_parameters(self.model)

    def matching(self) -> Mapping[str, Tensor]:
        """Return the selected parameters, including frozen ones."""
        return matching_parameters(self.model, self._selection)

    def selected(self) -> Mapping[str, Tensor]:
        """Return the selected parameters that are trainable."""
        return select_parameters(self.model, self._selection)

    def sources(self) -> Mapping[str, tuple[Tensor, ...]]:
        """Return, by name, what each computed weight is computed from; parameters are not in it."""
        return {}

    def optimized(self) -> list[Tensor]:
        """Return the parameters by which an optimizer moves what is selected."""
        sources = self.sources()
        groups = (sources.get(name, (weight,)) for name, weight in self.selected().items())
        return [parameter for group in groups for parameter in group if parameter.requires_grad]

    @contextmanager
    def differentiable(self) -> Iterator[None]:
        """Let the Fisher of what is selected be computed under the same names."""
        yield


def as_reusable(parameters: ParameterSelection) -> tuple[str, ...] | Callable[[str], bool] | None:
    """Return the selection in a form that can be used again: one-shot iterables become tuples."""
    if parameters is None or callable(parameters):
        return parameters
    return (parameters,) if isinstance(parameters, str) else tuple(parameters)


def _matches(pattern: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if fnmatchcase(name, pattern)]
