"""Where the parameters are used, read from the autograd graph of an output.

The graph shows what a model really computes: a weight that two modules use, or `F.linear`, or a
recurrence twice, has that many edges into it, whatever the modules look like. `Graph` lists the
nodes in a fixed order, so that two graphs of the same computation (for batches of different size)
can be compared node by node. A `PathNode` lies between a parameter and an operation that uses it,
where the parameter is transposed, split, reshaped or cast, but not yet mixed with data.
"""

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

Node = Any  # torch.autograd.graph.Node, whose saved values have no types


class Graph:
    """The nodes that computed an output, depth first, with their edges.

    Args:
        output: what the model returned.
        parameters: the names of the parameters to find, by their `id`.
    """

    def __init__(self, output: Tensor, parameters: Mapping[int, str]) -> None:
        self.output_number = output.output_nr
        self.nodes: list[Node] = []
        self.parameters: dict[int, str] = {}
        index: dict[Node | None, int] = {None: -1}
        stack: list[Node] = [output.grad_fn]
        while stack:
            node: Node = stack.pop()
            if node in index:
                continue
            index[node] = len(self.nodes)
            self.nodes.append(node)
            if node.name() == "CheckpointFunctionBackward":
                raise RuntimeError(
                    "a reentrant checkpoint hides its parameters from the graph: "
                    "call torch.utils.checkpoint with use_reentrant=False"
                )
            if not node.next_functions and id(getattr(node, "variable", None)) in parameters:
                self.parameters[index[node]] = parameters[id(node.variable)]
            stack += [child for child, _ in node.next_functions[::-1]]
        self.edges = [
            tuple([(index[child], number) for child, number in node.next_functions])
            for node in self.nodes
        ]

    @cached_property
    def consumers_first(self) -> list[int]:
        """The nodes in an order in which each comes after all nodes that consume its results."""
        waiting = Counter(child for edges in self.edges for child, _ in edges)
        ready, order = [0], []
        while ready:
            order.append(ready.pop())
            for child, _ in self.edges[order[-1]]:
                waiting[child] -= 1
                if child >= 0 and not waiting[child]:
                    ready.append(child)
        return order

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """Equal for two graphs of the same computation: operations, edges and parameters."""
        return tuple(map(type, self.nodes)), tuple(self.edges), tuple(self.parameters.items())

    @cached_property
    def consumers(self) -> dict[int, list[tuple[int, int, int]]]:
        """For each node: (output number, consuming node, slot there)."""
        consumers: dict[int, list[tuple[int, int, int]]] = {}
        for consumer, edges in enumerate(self.edges):
            for slot, (child, number) in enumerate(edges):
                consumers.setdefault(child, []).append((number, consumer, slot))
        return consumers

    @cached_property
    def used(self) -> list[list[int]]:
        """For each node, the indices of its results that are used."""
        indices: list[set[int]] = [set() for _ in self.nodes]
        indices[0].add(self.output_number)
        for edges in self.edges:
            for child, number in edges:
                if child >= 0:
                    indices[child].add(number)
        return [sorted(used) for used in indices]

    @property
    def elements(self) -> int:
        """Number of elements in the results of all operations, without views of parameters.

        Very large for nested tensors, whose sizes are not known.
        """
        if self.nested:
            return sys.maxsize
        leaves = {i for i, edges in enumerate(self.edges) if not edges}
        views = {
            i for i, edges in enumerate(self.edges) if len(edges) == 1 and edges[0][0] in leaves
        }
        made = (node for i, node in enumerate(self.nodes) if i not in leaves | views)
        return sum(prod(node._input_metadata[0].shape) for node in made)

    @cached_property
    def largest_result(self) -> int:
        """Number of elements in the largest result; 1 for nested tensors, whose sizes vary."""
        if self.nested:
            return 1
        shapes: list[torch.Size] = [
            meta.shape for node in self.nodes for meta in node._input_metadata[:1]
        ]
        return max(map(prod, shapes))

    def operation(self, node: int) -> str:
        """Return PyTorch's name of the operation, "" if it is not one of PyTorch's own."""
        return operation(self.nodes[node].name())

    def shape(self, node: int, number: int = 0) -> torch.Size:
        """Return the shape of a node's forward result."""
        shape: torch.Size = self.nodes[node]._input_metadata[number].shape
        return shape

    def dtype(self, node: int) -> torch.dtype:
        """Return the dtype of a node's forward result."""
        dtype: torch.dtype = self.nodes[node]._input_metadata[0].dtype
        return dtype

    @cached_property
    def rounding(self) -> float:
        """The relative rounding error of the least precise dtype in the graph."""
        return max(torch.finfo(dtype).eps for dtype in self._types)

    @cached_property
    def largest_number(self) -> float:
        """The largest value of the dtype in the graph with the smallest range."""
        return min(torch.finfo(dtype).max for dtype in self._types)

    @cached_property
    def _types(self) -> set[torch.dtype]:
        types = {meta.dtype for node in self.nodes for meta in node._input_metadata[:1]}
        return {dtype for dtype in types if dtype.is_floating_point or dtype.is_complex}

    @cached_property
    def nested(self) -> bool:
        """Whether some results are nested tensors, whose shapes cannot be compared."""
        return any(m.is_nested_tensor for node in self.nodes for m in node._input_metadata)

    def backward(self, output: Tensor, cotangent: Tensor, nodes: Sequence[int]) -> list[Tensor]:
        """Return the gradients of `cotangent · output` at the results of some nodes.

        They are zero where no gradient arrives.
        """
        edges = [GradientEdge(self.nodes[i], 0) for i in nodes]
        grads = torch.autograd.grad(output, edges, cotangent, retain_graph=True, allow_unused=True)
        return [
            output.new_zeros(self.shape(i), dtype=self.dtype(i)) if grad is None else grad
            for i, grad in zip(nodes, grads, strict=True)
        ]


@dataclass(frozen=True)
class PathNode:
    """A node between a parameter and its use, which rearranges, splits, casts or looks up rows.

    A row may be looked up twice, so squares cannot pass through a lookup.

    Attributes:
        node: the number of the node in the graph.
        number: which of its results is used.
        is_lookup: whether it is an embedding, which looks up rows of the parameter.
    """

    node: int
    number: int
    is_lookup: bool

    def view(self, graph: Graph, buffer: Tensor) -> Tensor:
        """Return the same view of `buffer`, which has one more leading dimension, for samples."""
        node = graph.nodes[self.node]
        match node.name():
            case "TBackward0":
                return buffer.transpose(-1, -2) if buffer.ndim == 3 else buffer
            case "TransposeBackward0":
                rank = buffer.ndim - 1
                return buffer.transpose(
                    1 + _dim(node._saved_dim0, rank), 1 + _dim(node._saved_dim1, rank)
                )
            case "SplitBackward0":
                dim = 1 + _dim(node._saved_dim, buffer.ndim - 1)
                return torch.split(buffer, node._saved_split_size, dim)[self.number]
            case "SplitWithSizesBackward0":
                dim = 1 + _dim(node._saved_dim, buffer.ndim - 1)
                return torch.split(buffer, list(node._saved_split_sizes), dim)[self.number]
            case "ViewBackward0" | "UnsafeViewBackward0" | "UnsqueezeBackward0":
                return buffer.view(buffer.shape[0], *graph.shape(self.node))
        return buffer  # a cast, an alias or a clone


EMBEDDING = "EmbeddingBackward0"
VIEWS = {
    "AliasBackward0",
    "CloneBackward0",
    "SplitBackward0",
    "SplitWithSizesBackward0",
    "TBackward0",
    "ToCopyBackward0",
    "TransposeBackward0",
    "UnsafeViewBackward0",
    "UnsqueezeBackward0",
    "ViewBackward0",
}
PATH_OPERATIONS = VIEWS | {EMBEDDING}  # those that a `PathNode` may have


def signed(saved: int) -> int:
    """Return a saved number; autograd returns negative ones as unsigned 64-bit numbers."""
    return saved - 2**64 if saved >= 2**63 else saved


def _dim(saved: int, rank: int) -> int:
    return signed(saved) % rank


@cache
def operation(name: str) -> str:
    """Return the operation of a node by its name, such as `Add` for `AddBackward0`.

    "" if it is not one of PyTorch's own.
    """
    match = re.fullmatch(r"(\w+)Backward\d+", name)  # names of users' functions have no number
    return match[1] if match else ""


Sizes: TypeAlias = tuple[int, ...]  # of a tensor's dimensions


@dataclass(frozen=True)
class SampleLayout:
    """Dimension `dim`, unflattened to (outer, samples, inner), has the samples in the middle.

    `SampleLayout(0, 1, 1)` is the usual batch dimension, `SampleLayout(0, 1, T)` a batch of
    sequences flattened to rows, and `SampleLayout(0, 2, 1)` two batches one after the other
    (`torch.cat([a, b])`).
    """

    dim: int
    outer: int
    inner: int

    def by_sample(self, tensor: Tensor, batch: int) -> Tensor:
        """Return the tensor with its samples in a new first dimension.

        What else was in `dim` stays there. `batch` is the number of samples.
        """
        if self.outer == 1:
            split: Tensor = tensor.unflatten(self.dim, (batch, self.inner))
            return split.movedim(self.dim, 0) if self.dim else split
        split = tensor.unflatten(self.dim, (self.outer, batch, self.inner)).movedim(self.dim + 1, 0)
        return split.flatten(self.dim + 1, self.dim + 2)

    def stride(self, shape: Sizes) -> int:
        """Return how many consecutive elements of a contiguous tensor belong to one sample."""
        return self.inner * prod(shape[self.dim + 1 :])


def at_stride(stride: int, shape: Sizes, batch: int) -> SampleLayout | None:
    """Return the layout in which element number i belongs to sample (i // stride) % batch.

    None if no single dimension holds the samples.

    Args:
        stride: number of consecutive elements that belong to one sample.
        shape: the shape of the tensor.
        batch: number of samples.
    """
    after = 1
    for dim in range(len(shape) - 1, -1, -1):
        inner, odd = divmod(stride, after)
        if odd or inner == 0:
            return None
        if shape[dim] % (inner * batch) == 0:
            return SampleLayout(dim, shape[dim] // (inner * batch), inner)
        after *= shape[dim]
    return None


def possible_layouts(shape: Sizes, batch: int) -> list[SampleLayout]:
    """Return every layout that the sizes allow, the simplest of each dimension first."""
    return [
        SampleLayout(dim, outer, size // batch // outer)
        for dim, size in enumerate(shape)
        if size and size % batch == 0
        for outer in range(1, size // batch + 1)
        if size // batch % outer == 0
    ]
