"""Where the parameters are used, read from the autograd graph of an output.

The graph is the truth about a model: a weight used by two modules, through `F.linear`, or twice by
a recurrence has that many edges into it, whatever the modules look like. `Graph` lists the nodes in
a fixed order, so that two graphs of the same computation (for batches of different size) can be
compared node by node, and `Step`s are the ways a parameter passes on its way to an operation:
transposed, cut, reshaped or cast, never mixed with data.
"""

import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

Node = Any  # torch.autograd.graph.Node, whose saved values have no types


class Graph:
    """The nodes behind `output`, depth first, with who consumes what."""

    def __init__(self, output: Tensor, parameters: Mapping[int, str]) -> None:
        """`parameters` are the names of the parameters to find, by their `id`."""
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
        """The nodes in an order in which each comes after all that consume its results."""
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
        """What makes two graphs the same computation: the operations, how they hang together, and
        the parameters.
        """
        return tuple(map(type, self.nodes)), tuple(self.edges), tuple(self.parameters.items())

    @cached_property
    def consumers(self) -> dict[int, list[tuple[int, int, int]]]:
        """For each node: (output number, consuming node, slot there)."""
        found: dict[int, list[tuple[int, int, int]]] = {}
        for consumer, edges in enumerate(self.edges):
            for slot, (child, number) in enumerate(edges):
                found.setdefault(child, []).append((number, consumer, slot))
        return found

    @cached_property
    def used(self) -> list[list[int]]:
        """For each node the numbers of its results that are used."""
        numbers: list[set[int]] = [set() for _ in self.nodes]
        numbers[0].add(self.output_number)
        for edges in self.edges:
            for child, number in edges:
                if child >= 0:
                    numbers[child].add(number)
        return [sorted(one) for one in numbers]

    @property
    def elements(self) -> int:
        """How many numbers the results of the operations hold, the parameters' own left out.

        Nested tensors do not tell.
        """
        if self.nested:
            return sys.maxsize
        leaves = {i for i, edges in enumerate(self.edges) if not edges}
        views = {
            i for i, edges in enumerate(self.edges) if len(edges) == 1 and edges[0][0] in leaves
        }
        made = (node for i, node in enumerate(self.nodes) if i not in leaves | views)
        return sum(prod(node._input_metadata[0].shape) for node in made)

    def operation(self, node: int) -> str:
        """What PyTorch calls the operation, "" if it is not one of its own."""
        return operation(self.nodes[node].name())

    def shape(self, node: int, number: int = 0) -> torch.Size:
        """The shape of a node's forward result."""
        shape: torch.Size = self.nodes[node]._input_metadata[number].shape
        return shape

    def dtype(self, node: int) -> torch.dtype:
        """The type of a node's forward result."""
        dtype: torch.dtype = self.nodes[node]._input_metadata[0].dtype
        return dtype

    @cached_property
    def rounding(self) -> float:
        """The relative rounding error of the coarsest type that is computed in."""
        return max(torch.finfo(one).eps for one in self._types)

    @cached_property
    def widest(self) -> float:
        """The largest number of the narrowest type that is computed in."""
        return min(torch.finfo(one).max for one in self._types)

    @cached_property
    def _types(self) -> set[torch.dtype]:
        types = {meta.dtype for node in self.nodes for meta in node._input_metadata[:1]}
        return {one for one in types if one.is_floating_point or one.is_complex}

    @cached_property
    def nested(self) -> bool:
        """Whether some results are nested tensors, which have no shape that could be compared."""
        return any(m.is_nested_tensor for node in self.nodes for m in node._input_metadata)

    def pull_back(self, output: Tensor, vector: Tensor, nodes: Sequence[int]) -> list[Tensor]:
        """The gradients of `vector · output` at the results of `nodes`, zero where none arrives."""
        edges = [GradientEdge(self.nodes[i], 0) for i in nodes]
        grads = torch.autograd.grad(output, edges, vector, retain_graph=True, allow_unused=True)
        return [
            output.new_zeros(self.shape(i), dtype=self.dtype(i)) if grad is None else grad
            for i, grad in zip(nodes, grads, strict=True)
        ]


@dataclass(frozen=True)
class Step:
    """A node between a parameter and its use that only rearranges, cuts, casts or looks up rows of
    it.

    A row may be looked up twice, so that squares do not pass through a lookup.
    """

    node: int
    number: int
    is_lookup: bool

    def view(self, graph: Graph, buffer: Tensor) -> Tensor:
        """The same view of `buffer`, which has one leading dimension more than the parameter."""
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
        return buffer  # cast, alias or clone


LOOKUP = "EmbeddingBackward0"
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
STEPS = VIEWS | {LOOKUP}


def signed(saved: int) -> int:
    """A saved number; negative ones come back as unsigned 64-bit numbers."""
    return saved - 2**64 if saved >= 2**63 else saved


def _dim(saved: int, rank: int) -> int:
    return signed(saved) % rank


@cache
def operation(name: str) -> str:
    """The operation behind the name of a node (`Add` of `AddBackward0`), "" if it is not one of
    PyTorch's own.
    """
    found = re.fullmatch(r"(\w+)Backward\d+", name)  # those of users have no number
    return found[1] if found else ""
