"""Which dimension has the samples, followed from the output back through the graph.

The output has the samples first. An operation that treats samples separately passes them on to its
inputs in a way that follows from its name, its attributes and the shapes, whatever the data.
`FLOWS` says how, for the operations we know. Behind an operation that is not listed, or that
combines samples, the place of the samples is unknown. It may still treat them separately, but only
the data can show that.
"""

from collections.abc import Callable
from math import prod

from torch import Tensor

from ewc.fisher.per_sample.graph import Graph, Node, SampleLayout, Sizes, at_stride, signed

MASK = 1e4  # larger entries may be masks, which say nothing about the size of the others
COMPARED = 16  # rows of the output that show how large the entries of each column are


class Rounding:
    """How much the output for a sample may differ, by rounding, in a batch of another size.

    Each entry is judged by its own size and the size of its column (the last dimension) in other
    rows. Next to a logit that is masked with -1e9, or a regression target in other units, any
    difference would seem small.

    Args:
        output: the output for a batch.
        rounding: the relative rounding error of one operation.
    """

    def __init__(self, output: Tensor, rounding: float) -> None:
        columns = output.shape[-1] if output.ndim > 1 else 1
        rows = output.detach().reshape(-1, columns)
        sizes = rows[:: max(1, len(rows) // COMPARED)].abs()
        small = sizes[sizes < MASK]
        typical = float(small.median()) if small.numel() else 0.0
        self.relative = rounding**0.5
        self.absolute = self.relative * sizes.amax(0) + 16 * rounding * typical

    def explains(self, first: Tensor, second: Tensor) -> bool:
        """Whether two outputs for a sample are equal up to rounding."""
        if first.shape != second.shape:
            return False
        first, second = first.detach(), second.detach()
        allowed = self.relative * first.abs() + self.absolute
        return bool(((first - second).abs() <= allowed).all())


# How an operation passes samples on: returns the layout of the input at the end of an edge.
Flow = Callable[["GraphEdge"], SampleLayout | None]


class GraphEdge:
    """The way back from output `number` of a node to its input `slot`.

    Args:
        graph: the graph of a batch.
        index: the number of the node in the graph.
        number: the number of the output.
        slot: the number of the input.
        layout: where the samples are in the output.
        batch: the number of samples.
    """

    def __init__(
        self, graph: Graph, index: int, number: int, slot: int, layout: SampleLayout, batch: int
    ) -> None:
        self.graph, self.index, self.number, self.slot = graph, index, number, slot
        self.node: Node = graph.nodes[index]
        self.layout, self.batch = layout, batch
        self.output: Sizes = tuple(graph.shape(index, number))
        self.input: Sizes = tuple(graph.shape(*graph.edges[index][slot]))

    def at(self, dim: int) -> SampleLayout | None:
        """Return the same layout in dimension `dim` of the input, if the sizes are equal."""
        same = 0 <= dim < len(self.input) and self.input[dim] == self.output[self.layout.dim]
        return SampleLayout(dim, self.layout.outer, self.layout.inner) if same else None

    def dim(self, name: str = "dim") -> int:
        """Return a saved dimension of the input, as a number >= 0."""
        return signed(getattr(self.node, f"_saved_{name}")) % max(len(self.input), 1)

    def dims(self, name: str = "dim") -> list[int]:
        """Return saved dimensions of the input, as indices >= 0. None saved means all."""
        saved = getattr(self.node, f"_saved_{name}")
        rank = max(len(self.input), 1)
        saved = saved if isinstance(saved, tuple | list) else () if saved is None else (saved,)
        return [signed(dim) % rank for dim in saved] or list(range(rank))

    def shifted(self, dim: int, offset: int) -> SampleLayout | None:
        """Return the layout if one of output and input is the other from `offset` of `dim` on."""
        if self.layout.dim != dim:
            return self.at(self.layout.dim)
        size, period = self.input[dim], self.batch * self.layout.inner
        if offset % period or size % period:
            return None
        return SampleLayout(dim, size // period, self.layout.inner)


def follow_samples(graph: Graph, batch: int) -> dict[tuple[int, int], SampleLayout]:
    """Return the layout of each result in the graph, by (node, number), where it is certain."""
    known: dict[tuple[int, int], SampleLayout | None] = {
        (0, graph.output_number): SampleLayout(0, 1, 1)
    }
    for index in graph.consumers_first:
        flow = FLOWS.get(graph.operation(index), _unknown)
        for number in graph.used[index]:
            layout = known[index, number]
            for slot, place in enumerate(graph.edges[index]):
                if place[0] < 0:
                    continue  # a constant
                arrived = layout and flow(GraphEdge(graph, index, number, slot, layout, batch))
                agreed = place not in known or known[place] == arrived
                known[place] = arrived if agreed else None
    return {place: layout for place, layout in known.items() if layout is not None}


def _unknown(edge: GraphEdge) -> None:
    return None


def _elementwise(edge: GraphEdge) -> SampleLayout | None:
    """Dimensions are aligned from the right, as in broadcasting."""
    return edge.at(edge.layout.dim - len(edge.output) + len(edge.input))


def _same_order(edge: GraphEdge) -> SampleLayout | None:
    """The elements keep their order, the shape may change."""
    return at_stride(edge.layout.stride(edge.output), edge.input, edge.batch)


def _transposed(edge: GraphEdge) -> SampleLayout | None:
    if len(edge.input) < 2:
        return edge.at(edge.layout.dim)
    first, second = (
        (0, 1) if edge.graph.operation(edge.index) == "T" else (edge.dim("dim0"), edge.dim("dim1"))
    )
    return edge.at({first: second, second: first}.get(edge.layout.dim, edge.layout.dim))


def _permuted(edge: GraphEdge) -> SampleLayout | None:
    return edge.at(edge.dims("dims")[edge.layout.dim])


def _reduced(edge: GraphEdge) -> SampleLayout | None:
    """The input has further dimensions, which were summed over and have no samples."""
    if edge.node._saved_keepdim:
        return edge.at(edge.layout.dim)
    summed = edge.dims()
    kept = [dim for dim in range(len(edge.input)) if dim not in summed]
    return edge.at(kept[edge.layout.dim])


def _along(edge: GraphEdge) -> SampleLayout | None:
    """Rows along `dim` are treated separately."""
    return None if edge.layout.dim in edge.dims() else edge.at(edge.layout.dim)


def _along_dims(edge: GraphEdge) -> SampleLayout | None:
    return None if edge.layout.dim in edge.dims("dims") else edge.at(edge.layout.dim)


def _selected(edge: GraphEdge) -> SampleLayout | None:
    return edge.at(edge.layout.dim + (edge.layout.dim >= edge.dim()))


def _sliced(edge: GraphEdge) -> SampleLayout | None:
    dim, start = edge.dim(), signed(edge.node._saved_start)
    start = min(max(start + edge.input[dim] if start < 0 else start, 0), edge.input[dim])
    if edge.node._saved_step != 1 and dim == edge.layout.dim:
        return None
    return edge.shifted(dim, start)


def _split(edge: GraphEdge) -> SampleLayout | None:
    return edge.shifted(edge.dim(), edge.number * edge.node._saved_split_size)


def _split_with_sizes(edge: GraphEdge) -> SampleLayout | None:
    return edge.shifted(edge.dim(), sum(edge.node._saved_split_sizes[: edge.number]))


def _concatenated(edge: GraphEdge) -> SampleLayout | None:
    """The input is a piece of the output, after the inputs before it."""
    dim = edge.dim()
    earlier = edge.graph.edges[edge.index][: edge.slot]
    if len(edge.input) != len(edge.output):
        return None  # an empty tensor of shape (0,), which `cat` ignores
    if dim == edge.layout.dim and any(child < 0 for child, _ in earlier):
        return None  # the size of a constant is not in the graph
    start = (
        sum(prod(edge.graph.shape(*place)[dim : dim + 1]) for place in earlier)
        if dim == edge.layout.dim
        else 0
    )
    return edge.shifted(dim, start)


def _stacked(edge: GraphEdge) -> SampleLayout | None:
    dim = signed(edge.node._saved_dim) % len(edge.output)
    return None if edge.layout.dim == dim else edge.at(edge.layout.dim - (edge.layout.dim > dim))


def _product(first: int) -> Flow:
    """Rows come from the matrix in slot `first`, columns from the next one.

    If `first` is 1, slot 0 has what is added to the product.
    """

    def flow(edge: GraphEdge) -> SampleLayout | None:
        if edge.slot < first:
            return _elementwise(edge)
        rows = len(edge.output) - 2  # a dimension before the rows belongs to both
        if edge.layout.dim < rows or edge.layout.dim == rows + edge.slot - first:
            return edge.at(edge.layout.dim)
        return None

    return flow


def _matrix_vector(edge: GraphEdge) -> SampleLayout | None:
    return edge.at(0) if edge.slot == 0 else None


def _first_dimension(edge: GraphEdge) -> SampleLayout | None:
    return edge.at(0) if edge.slot == 0 and edge.layout.dim == 0 else None


def _layer_norm(edge: GraphEdge) -> SampleLayout | None:
    rows = len(edge.output) - len(edge.node._saved_normalized_shape)
    return edge.at(edge.layout.dim) if edge.slot == 0 and edge.layout.dim < rows else None


def _batch_norm(edge: GraphEdge) -> SampleLayout | None:
    """Running statistics are constants, the statistics of a batch are not."""
    return edge.at(edge.layout.dim) if edge.slot == 0 and not edge.node._saved_training else None


def _attention(edge: GraphEdge) -> SampleLayout | None:
    """Each pair of sample and head has its own queries, keys and values."""
    return (
        edge.at(edge.layout.dim)
        if edge.slot < 3 and edge.layout.dim < len(edge.output) - 2
        else None
    )


def _spatial(rank: int) -> Flow:
    """The last `rank` dimensions are space."""
    return lambda edge: (
        edge.at(edge.layout.dim) if edge.layout.dim < len(edge.output) - rank else None
    )


def _padded(edge: GraphEdge) -> SampleLayout | None:
    """Pads are in pairs, starting with the last dimension; negative ones crop."""
    first = 2 * (len(edge.output) - 1 - edge.layout.dim)
    return None if any(edge.node._saved_pad[first : first + 2]) else edge.at(edge.layout.dim)


_ELEMENTWISE = """
    Abs Add Addcdiv Addcmul Alias Atan Ceil Celu Clamp ClampMax ClampMin Clone Cos Cosh Div Elu Erf
    Exp Expand Expm1 Fill Floor Gelu Hardsigmoid Hardswish Hardtanh LeakyRelu Lerp Log Log10 Log1P
    Log2 LogSigmoid MaskedFill Maximum Minimum Mish Mul NanToNum NativeDropout Neg Pow PreluKernel
    Reciprocal Relu Round Rsqrt Rsub Sgn Sigmoid Sign Silu Sin Sinh Softplus Softshrink Sqrt Sub Tan
    Tanh Threshold ToCopy Where
"""
_REDUCTIONS = "Amax Amin LinalgVectorNorm Logsumexp Max Mean Min Norm Prod Std Sum Var"
_SPATIAL = """
    AdaptiveAvgPool AdaptiveMaxPool AvgPool MaxPool ReflectionPad ReplicationPad UpsampleBilinear
    UpsampleNearest
"""

FLOWS: dict[str, Flow] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    **dict.fromkeys(["ReshapeAlias", "Squeeze", "UnsafeView", "Unsqueeze", "View"], _same_order),
    **dict.fromkeys(_REDUCTIONS.split(), _reduced),
    **dict.fromkeys(["Cumsum", "Glu", "LogSoftmax", "Softmax"], _along),
    **dict.fromkeys(["Flip", "Roll"], _along_dims),
    **dict.fromkeys(["T", "Transpose"], _transposed),
    **dict.fromkeys(["Select", "Unbind"], _selected),
    **dict.fromkeys(["Split", "UnsafeSplit"], _split),
    **{f"{name}{rank}D": _spatial(rank) for name in _SPATIAL.split() for rank in (1, 2, 3)},
    **{f"MaxPool{rank}DWithIndices": _spatial(rank) for rank in (2, 3)},
    "Addmm": _product(1),
    "Baddbmm": _product(1),
    "Bmm": _product(0),
    "Cat": _concatenated,
    "ConstantPadNd": _padded,
    "Convolution": _first_dimension,
    "Im2Col": _first_dimension,
    "Mm": _product(0),
    "Mv": _matrix_vector,
    "NativeBatchNorm": _batch_norm,
    "NativeGroupNorm": _first_dimension,
    "NativeLayerNorm": _layer_norm,
    "Permute": _permuted,
    "ScaledDotProductEfficientAttention": _attention,
    "ScaledDotProductFlashAttention": _attention,
    "ScaledDotProductFlashAttentionForCpu": _attention,
    "Slice": _sliced,
    "SplitWithSizes": _split_with_sizes,
    "Stack": _stacked,
}
