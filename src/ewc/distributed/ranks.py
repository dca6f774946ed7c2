"""The ranks that share one model, each with its own part of the data.

`find_ranks` decides which these are. It never guesses: several ranks may as well train a
model each, and a mean over their samples would be wrong, and wait forever for those that do not ask
for one.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, distributed, nn

from ewc.diagnostics import two_sums
from ewc.distributed.shards import is_sharded
from ewc.parameters import named_parameters, wrappers

ProcessGroup: TypeAlias = "distributed.ProcessGroup | Literal['world', 'local'] | None"


class OtherRankError(RuntimeError):
    """Raised where all went well, because another rank failed."""


@dataclass(frozen=True)
class _Failure:
    message: str


class Ranks:
    """The ranks of a group, or this one alone.

    Args:
        group: the group; None is this rank alone.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self.size = 1 if group is None else distributed.get_world_size(group)
        self.rank = 0 if group is None else distributed.get_rank(group)

    def exchange(self, value: Any) -> list[Any]:
        """Return the values of all ranks; raise if one of them failed instead."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value, group=self.group)
        for rank, other in enumerate(values):
            if isinstance(other, _Failure) and rank != self.rank:
                raise OtherRankError(
                    f"rank {rank} failed, so this one stops too and changes "
                    f"nothing. Its error: {other.message}"
                )
        return values

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Raise in all ranks if the block raises in one of them, instead of waiting for it."""
        try:
            yield
        except OtherRankError:
            raise
        except Exception as error:
            with suppress(OtherRankError):
                self.exchange(_Failure(f"{type(error).__name__}: {error}"))
            raise
        self.exchange(None)

    def sum(self, *numbers: int) -> list[int]:
        """Return the sum over all ranks of each number."""
        return [sum(values) for values in zip(*self.exchange(numbers), strict=True)]

    def sum_(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all ranks."""
        if self.size > 1:
            distributed.all_reduce(tensor, group=self.group)

    def share(self, number: int | None) -> int | None:
        """Return this rank's share of a number, as equal as possible; None stays None."""
        if number is None:
            return None
        return number // self.size + (self.rank < number % self.size)

    def own_generator(self, generator: torch.Generator | None) -> torch.Generator | None:
        """Return a source of random numbers that differ from those of the other ranks.

        They would be the same if all ranks had the same seed, as is usual.
        """
        if self.size == 1:
            return generator
        device = torch.device("cpu") if generator is None else generator.device
        seed = int(torch.randint(2**62, (), generator=generator, device=device))
        return torch.Generator(device).manual_seed(seed + self.rank)

    def check_same_weights(self, parameters: Mapping[str, Tensor]) -> None:
        """Raise, in all ranks, if the weights of some differ from those of the first."""
        if self.size == 1:
            return
        first, *others = self.exchange(two_sums(parameters))
        for rank, other in enumerate(others, start=1):
            for name, numbers in first.items():
                if name not in other or not _are_close(numbers, other[name]):
                    raise ValueError(
                        f"expected the same weights in all ranks, but {name!r} is not the "
                        f"same in those of rank 0 and {rank}: different models cannot share a "
                        "Fisher. If each rank has a model of its own, pass process_group='local'"
                    )


@dataclass(frozen=True)
class RankChoice:
    """The user's choice of ranks, which a memory keeps. It survives copies, as a group cannot.

    What is unpickled, in another program, has forgotten the group.
    """

    group: ProcessGroup

    def __deepcopy__(self, memo: Any) -> "RankChoice":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        kept = self.group if isinstance(self.group, str) else None
        return RankChoice, (kept,)


def choose_ranks(model: nn.Module, process_group: ProcessGroup) -> RankChoice:
    """Return the user's choice, or the group of a `DistributedDataParallel` around the model."""
    _check(process_group)
    if process_group is None:
        for wrapper in wrappers(model):
            if isinstance(wrapper, nn.parallel.DistributedDataParallel):
                return RankChoice(wrapper.process_group)
    return RankChoice(process_group)


def find_ranks(model: nn.Module, process_group: ProcessGroup) -> Ranks:
    """Return the ranks whose samples a Fisher is the mean of.

    Args:
        model: the model. A wrapper around it, or the way it is sharded, shows the ranks.
        process_group: a group; `"world"` for all ranks; `"local"` for this one alone; None to
            find out, which raises if there are several ranks and nothing shows which it is.
    """
    chosen = choose_ranks(model, process_group).group
    sharded = [p for p in named_parameters(model).values() if is_sharded(p)]
    if sharded:
        return Ranks(_sharding_group(sharded, process_group))
    if not distributed.is_available() or not distributed.is_initialized() or chosen == "local":
        return Ranks()
    if chosen is None and distributed.get_world_size() > 1:
        raise ValueError(
            f"{distributed.get_world_size()} ranks run here, and nothing shows whether they "
            "share this model. Pass process_group='world' if they do: the Fisher is then the mean "
            "over the samples of all, and all must call this. Pass process_group='local' if each "
            "trains a model of its own. A model in DistributedDataParallel, or sharded by "
            "fully_shard, needs neither"
        )
    if chosen is None or chosen == "world":
        chosen = distributed.group.WORLD
    return Ranks(chosen)


def _are_close(a: tuple[float, float], b: tuple[float, float]) -> bool:
    """Whether two fingerprints are the same, but for the order in which sums were added up."""
    if math.isnan(a[1]) or math.isnan(b[1]):
        return math.isnan(a[1]) and math.isnan(b[1])
    tolerance = 1e-9 * math.sqrt(max(a[1], b[1]))
    return abs(a[0] - b[0]) <= tolerance and math.isclose(a[1], b[1], rel_tol=1e-9)


def _check(process_group: ProcessGroup) -> None:
    if isinstance(process_group, str) and process_group not in ("world", "local"):
        raise ValueError(
            f"expected process_group to be a group, 'world', 'local' or None, got {process_group!r}"
        )


def _sharding_group(parameters: list[Any], process_group: ProcessGroup) -> Any:
    """Return the group of the mesh that the parameters are sharded over."""
    meshes = {parameter.device_mesh for parameter in parameters}
    mesh, *others = meshes
    if others or any(sum(p.is_shard() for p in weight.placements) > 1 for weight in parameters):
        raise ValueError(
            "expected parameters that fully_shard has sharded over one mesh; tensor parallelism "
            "and several meshes are not supported"
        )
    if mesh.ndim > 1 and mesh.size() < distributed.get_world_size():
        raise ValueError("expected a mesh of several dimensions to have all ranks")
    group = mesh.get_group() if mesh.ndim == 1 else distributed.group.WORLD
    if process_group == "world":
        process_group = distributed.group.WORLD
    if process_group is not None and (
        process_group == "local" or _ranks(process_group) != _ranks(group)
    ):
        raise ValueError(
            "expected process_group=None for a model that is sharded: its ranks are those of "
            f"its mesh, and process_group={process_group!r} has others"
        )
    return group


def _ranks(group: Any) -> set[int]:
    return set(distributed.get_process_group_ranks(group))
