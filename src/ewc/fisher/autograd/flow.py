"""Which dimension holds the samples, followed from the output through the graph.

The output has the samples first. An operation that treats samples apart hands them on to its
inputs in a way that follows from its name, its attributes and the shapes alone, whatever the data:
`FLOWS` says how, for the operations we know. What comes out of an operation that is not here, or
that combines samples, is unknown; it may still treat samples apart, but only the data can tell.
"""

from collections.abc import Callable
from math import prod

from ewc.fisher.autograd.graph import Graph, Node, signed
from ewc.fisher.autograd.layout import Layout, Shape, at_stride

# How an operation hands the samples on: the layout of the input at the end of a passage.
Flow = Callable[["Passage"], Layout | None]


class Passage:
    """One way through the graph: from output `number` of a node to its input `slot`."""

    def __init__(
        self, graph: Graph, index: int, number: int, slot: int, layout: Layout, batch: int
    ) -> None:
        self.graph, self.index, self.number, self.slot = graph, index, number, slot
        self.node: Node = graph.nodes[index]
        self.layout, self.batch = layout, batch
        self.output: Shape = tuple(graph.shape(index, number))
        self.input: Shape = tuple(graph.shape(*graph.edges[index][slot]))

    def at(self, dim: int) -> Layout | None:
        """The same layout in dimension `dim` of the input, if its size is that of the output."""
        same = 0 <= dim < len(self.input) and self.input[dim] == self.output[self.layout.dim]
        return Layout(dim, self.layout.outer, self.layout.inner) if same else None

    def dim(self, name: str = "dim") -> int:
        """A saved dimension of the input, not negative."""
        return signed(getattr(self.node, f"_saved_{name}")) % max(len(self.input), 1)

    def dims(self, name: str = "dim") -> list[int]:
        """Saved dimensions of the input, not negative; none saved means all."""
        saved = getattr(self.node, f"_saved_{name}")
        rank = max(len(self.input), 1)
        saved = saved if isinstance(saved, tuple | list) else () if saved is None else (saved,)
        return [signed(dim) % rank for dim in saved] or list(range(rank))

    def shifted(self, dim: int, offset: int) -> Layout | None:
        """One of output and input is a piece of the other, which begins at `offset` of `dim`."""
        if self.layout.dim != dim:
            return self.at(self.layout.dim)
        size, period = self.input[dim], self.batch * self.layout.inner
        if offset % period or size % period:
            return None
        return Layout(dim, size // period, self.layout.inner)


def follow_samples(graph: Graph, batch: int) -> dict[tuple[int, int], Layout]:
    """The layout of each result in the graph, by (node, number), where it is known for certain."""
    known: dict[tuple[int, int], Layout | None] = {(0, graph.output_number): Layout(0, 1, 1)}
    for index in graph.consumers_first:
        flow = FLOWS.get(graph.operation(index), _unknown)
        for number in graph.used[index]:
            layout = known[index, number]
            for slot, place in enumerate(graph.edges[index]):
                if place[0] < 0:
                    continue  # a constant
                found = layout and flow(Passage(graph, index, number, slot, layout, batch))
                agreed = place not in known or known[place] == found
                known[place] = found if agreed else None
    return {place: layout for place, layout in known.items() if layout is not None}


def _unknown(p: Passage) -> None:
    return None


def _elementwise(p: Passage) -> Layout | None:
    """Aligned from the right, as broadcasting does."""
    return p.at(p.layout.dim - len(p.output) + len(p.input))


def _same_order(p: Passage) -> Layout | None:
    """The elements keep their order, the shape may change."""
    return at_stride(p.layout.stride(p.output), p.input, p.batch)


def _transposed(p: Passage) -> Layout | None:
    if len(p.input) < 2:
        return p.at(p.layout.dim)
    first, second = (0, 1) if p.graph.operation(p.index) == "T" else (p.dim("dim0"), p.dim("dim1"))
    return p.at({first: second, second: first}.get(p.layout.dim, p.layout.dim))


def _permuted(p: Passage) -> Layout | None:
    return p.at(p.dims("dims")[p.layout.dim])


def _reduced(p: Passage) -> Layout | None:
    """The input has more entries in the dimensions summed over, which hold no samples."""
    if p.node._saved_keepdim:
        return p.at(p.layout.dim)
    summed = p.dims()
    kept = [dim for dim in range(len(p.input)) if dim not in summed]
    return p.at(kept[p.layout.dim])


def _along(p: Passage) -> Layout | None:
    """Rows along `dim` are treated apart."""
    return None if p.layout.dim in p.dims() else p.at(p.layout.dim)


def _along_dims(p: Passage) -> Layout | None:
    return None if p.layout.dim in p.dims("dims") else p.at(p.layout.dim)


def _selected(p: Passage) -> Layout | None:
    return p.at(p.layout.dim + (p.layout.dim >= p.dim()))


def _sliced(p: Passage) -> Layout | None:
    dim, start = p.dim(), signed(p.node._saved_start)
    start = min(max(start + p.input[dim] if start < 0 else start, 0), p.input[dim])
    if p.node._saved_step != 1 and dim == p.layout.dim:
        return None
    return p.shifted(dim, start)


def _split(p: Passage) -> Layout | None:
    return p.shifted(p.dim(), p.number * p.node._saved_split_size)


def _split_with_sizes(p: Passage) -> Layout | None:
    return p.shifted(p.dim(), sum(p.node._saved_split_sizes[: p.number]))


def _concatenated(p: Passage) -> Layout | None:
    """The input is a piece of the output; before it lie the other inputs."""
    dim = p.dim()
    earlier = p.graph.edges[p.index][: p.slot]
    if len(p.input) != len(p.output):
        return None  # an empty tensor of shape (0,), which is left out
    if dim == p.layout.dim and any(child < 0 for child, _ in earlier):
        return None  # the size of a constant is not in the graph
    start = (
        sum(prod(p.graph.shape(*edge)[dim : dim + 1]) for edge in earlier)
        if dim == p.layout.dim
        else 0
    )
    return p.shifted(dim, start)


def _stacked(p: Passage) -> Layout | None:
    dim = signed(p.node._saved_dim) % len(p.output)
    return None if p.layout.dim == dim else p.at(p.layout.dim - (p.layout.dim > dim))


def _product(first: int) -> Flow:
    """Rows come from the matrix in slot `first`, columns from the next one; what is added to the
    product is in slot 0.
    """

    def flow(p: Passage) -> Layout | None:
        if p.slot < first:
            return _elementwise(p)
        rows = len(p.output) - 2  # a dimension before the rows belongs to both
        if p.layout.dim < rows or p.layout.dim == rows + p.slot - first:
            return p.at(p.layout.dim)
        return None

    return flow


def _matrix_vector(p: Passage) -> Layout | None:
    return p.at(0) if p.slot == 0 else None


def _first_dimension(p: Passage) -> Layout | None:
    return p.at(0) if p.slot == 0 and p.layout.dim == 0 else None


def _layer_norm(p: Passage) -> Layout | None:
    rows = len(p.output) - len(p.node._saved_normalized_shape)
    return p.at(p.layout.dim) if p.slot == 0 and p.layout.dim < rows else None


def _batch_norm(p: Passage) -> Layout | None:
    """Running statistics are constants; those of the batch are not."""
    return p.at(p.layout.dim) if p.slot == 0 and not p.node._saved_training else None


def _attention(p: Passage) -> Layout | None:
    """Queries, keys and values of one head, one sample each."""
    return p.at(p.layout.dim) if p.slot < 3 and p.layout.dim < len(p.output) - 2 else None


def _spatial(rank: int) -> Flow:
    """The last `rank` dimensions are space."""
    return lambda p: p.at(p.layout.dim) if p.layout.dim < len(p.output) - rank else None


def _padded(p: Passage) -> Layout | None:
    """Pads are in pairs, from the last dimension on; a negative one cuts."""
    first = 2 * (len(p.output) - 1 - p.layout.dim)
    return None if any(p.node._saved_pad[first : first + 2]) else p.at(p.layout.dim)


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
