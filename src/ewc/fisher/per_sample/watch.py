"""What the operations of a forward pass do besides building a graph.

An autograd graph does not show everything. The order in which tokens fill an expert, a maximum over
a batch that decides what is computed next, or a write to an input leave no trace in it. `Watch`
sees every operation while the model runs. It notes those that may *look across samples* (maxima,
sorts, running sums, counts, products and windows along them, samples in another order), and stops a
write to the caller's tensors before it happens.

Which dimensions hold the samples is not known here. But the same sample alone takes the same
operations with smaller tensors: a dimension whose size differs holds samples. `samples_to_compare`
says for which samples a look across them can have made a difference.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

Sizes = tuple[int, ...]
Outline = tuple[str, tuple[Sizes, ...], tuple[int, ...] | None]

# Operations along dimensions: those given by `dim`, or all.
_ALONG = """
    all amax amin aminmax any argmax argmin argsort bincount count_nonzero cummax cummin cumprod
    cumsum equal _fft_c2c _fft_c2r _fft_r2c flip gather histc index_select kthvalue
    linalg_vector_norm logcumsumexp logsumexp _log_softmax masked_scatter max mean median min mode
    msort nanmedian nansum norm prod put roll _safe_softmax _softmax sort std std_mean sum take topk
    unfold unique_consecutive unique_dim _unique _unique2 var var_mean
"""
# Along all dimensions but the first, in which these have samples.
_WINDOWS = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d avg_pool2d
    avg_pool3d convolution im2col max_pool2d_with_indices max_pool3d_with_indices
    _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
"""
# Along one dimension of one argument: that of sums of products, or of rows that are looked up.
_OF_ONE = {
    "addmm": (1, 1), "addmv": (1, 1), "baddbmm": (1, 2), "bmm": (0, 2), "dot": (0, 0),
    "embedding": (0, 0), "_embedding_bag": (0, 0), "isin": (1, 0), "mm": (0, 1), "mv": (0, 1),
    "vdot": (0, 0),
}  # fmt: skip
MASKS = (torch.bool, torch.uint8)  # dtypes of an index that selects, as a mask does
# Parts of a dimension.
_PARTS = "narrow select slice split split_with_sizes unbind unsafe_split"
# Writes to places that are given by an index.
_SCATTERS = """
    index_add index_add_ index_copy index_copy_ index_fill index_fill_ index_put index_put_
    _index_put_impl_ index_reduce index_reduce_ _unsafe_index_put scatter scatter_ scatter_add
    scatter_add_ scatter_reduce scatter_reduce_
"""
# Their results have a size that depends on the data, or go to Python.
_READS = "_local_scalar_dense masked_select nonzero repeat_interleave"
NOTED = {
    name: scope
    for scope, names in (
        ("along", _ALONG), ("window", _WINDOWS), ("of one", " ".join(_OF_ONE)),
        ("part", _PARTS), ("scatter", _SCATTERS), ("read", _READS),
    )
    for name in names.split()
}  # fmt: skip
# They read memory directly, and are seen as calls from Python only. An array may be written to.
_READS_OF_ALL = {Tensor.tolist: "tolist", Tensor.numpy: "numpy", Tensor.__array__: "numpy"}
_SHARED = (Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)
# Reductions of which each sample's own result can be compared with that of the batch.
_COMPARABLE = ("all", "amax", "amin", "any", "max", "min")

_INDEXED = (
    torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default, torch.ops.aten._index_put_impl_.default,
)  # fmt: skip
# Along one dimension, by an index: the arguments are a tensor, a dimension and an index.
_BY_INDEX = (
    "gather", "index_add", "index_add_", "index_copy", "index_copy_", "index_select", "scatter",
    "scatter_", "scatter_add", "scatter_add_",
)  # fmt: skip
_DIM = ("dim", "dims", "dimension")  # the names of that argument


class InputWritten(BaseException):
    """Raised before an operation writes to a protected tensor; no model should catch it."""


@dataclass(frozen=True)
class Look:
    """An operation that may look across samples.

    Attributes:
        name: PyTorch's name of the operation.
        sizes: the sizes of the tensors that it takes.
        dims: the dimensions of the first one that it works along; None for scatters and reads.
        values: the first tensor, where truth values or integers are reduced.
        version: how often it had been written to.
    """

    name: str
    sizes: tuple[Sizes, ...]
    dims: tuple[int, ...] | None = None
    values: Tensor | None = None
    version: int = 0

    @property
    def outline(self) -> Outline:
        """What it looks at, without the data."""
        return self.name, self.sizes, self.dims


class Watch(TorchDispatchMode):
    """Notes the looks of all operations that run inside, in order.

    Args:
        protected: tensors that must not be written to.
    """

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not needed, as nothing is compiled here; PyTorch would import its compiler for it."""
        return False

    def __init__(self, protected: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.looks: list[Look] = []
        self._protected = {storage for tensor in protected if (storage := _storage(tensor))}
        self._calls = _Calls(self.looks, self._protected)

    def __enter__(self) -> Self:
        self._calls.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._calls.__exit__(*exception)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name, dim_at, default, written = _traits(func)
        if written and self._protected:
            for at, keyword in written:
                value = args[at] if at < len(args) else kwargs.get(keyword)
                for tensor in value if isinstance(value, list | tuple) else [value]:
                    if isinstance(tensor, Tensor) and _storage(tensor) in self._protected:
                        raise InputWritten
        result = func(*args, **kwargs)
        if name:
            dim = args[dim_at] if 0 <= dim_at < len(args) else kwargs.get("dim", default)
            self._note(name, args, dim, result)
        if func in _INDEXED:
            self._note_indices(name or "index", args[0], args[1])
        return result

    def _note(self, name: str, args: tuple[Any, ...], dim: Any, result: Any) -> None:
        scope = NOTED[name]
        if scope == "read":
            self.looks.append(Look(name, ()))
            return
        tensors = list(_tensors(args))
        if not tensors or any(tensor.is_nested for tensor in tensors):
            return
        if scope == "of one":
            at, dim = _OF_ONE[name]
            tensors = tensors[at:]
        first, rank = tensors[0], tensors[0].ndim
        given = dim if isinstance(dim, list | tuple) else () if dim is None else (dim,)
        if scope == "window":
            given = tuple(range(1, rank))
        sizes = tuple([tuple(tensor.shape) for tensor in tensors])
        if scope == "scatter":
            self.looks.append(Look(name, sizes))
            if not given:
                return
        if name in _BY_INDEX and _is_in_order(args[2], args[0], args[1] % max(rank, 1)):
            return
        dims = tuple([each % max(rank, 1) for each in given]) or tuple(range(rank))
        if scope == "part" and isinstance(result, Tensor) and result.shape == first.shape:
            return
        kept = name in _COMPARABLE and not (first.is_floating_point() or first.is_complex())
        values = first if kept else None
        self.looks.append(Look(name, sizes, dims, values=values, version=first._version))

    def _note_indices(self, name: str, tensor: Tensor, indices: Sequence[Tensor | None]) -> None:
        """Note rows that are taken from, or written to, other places than their own."""
        if any(index is not None and index.dtype in MASKS for index in indices):
            self.looks.append(Look("masked_select", ()))
            return
        dims = tuple(
            dim
            for dim, index in enumerate(indices)
            if index is not None and not _is_in_order(index, tensor, dim)
        )
        if dims:
            self.looks.append(Look(name, (tuple(tensor.shape),), dims))


class _Calls(TorchFunctionMode):
    """Notes the tensors that are turned into lists or arrays, and protects those of the caller."""

    def __init__(self, looks: list[Look], protected: set[int]) -> None:
        super().__init__()
        self._looks, self._protected = looks, protected

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _SHARED and self._protected and _storage(args[0]) in self._protected:
            raise InputWritten
        if func in _READS_OF_ALL and args:
            sizes = tuple(args[0].shape)
            self._looks.append(Look(_READS_OF_ALL[func], (sizes,), tuple(range(len(sizes)))))
        return func(*args, **(kwargs or {}))


def samples_to_compare(together: Sequence[Look], alone: Sequence[Look], size: int) -> Sequence[int]:
    """Return the samples that may have another output alone than in the batch.

    Args:
        together: the looks of the model's run with a batch.
        alone: those of its run with one sample of it.
        size: the number of samples in the batch.
    """
    everyone = range(size)
    if [look.name for look in together] != [look.name for look in alone]:
        return everyone  # what is computed depends on the samples
    differing: set[int] = set()
    for look, other in zip(together, alone, strict=True):
        if not _crosses(look, other):
            continue
        own = _own_results_differ(look, other, size)
        if own is None:
            return everyone
        differing.update(own)
    return sorted(differing)


def are_within(together: Sequence[Look], alone: Sequence[Look]) -> bool:
    """Whether no look is across samples, nor is any in another batch with the same outlines.

    Where nothing is read, what is computed does not depend on the data.
    """
    if [look.name for look in together] != [look.name for look in alone]:
        return False
    if any(NOTED.get(look.name, "read") == "read" for look in together):
        return False
    return not any(map(_crosses, together, alone))


def _crosses(look: Look, alone: Look) -> bool:
    """Whether an operation looked across samples."""
    if not look.sizes:
        return False
    if len(look.sizes) != len(alone.sizes):
        return True
    differing = [
        [dim for dim, (a, b) in enumerate(zip(sizes, sizes_alone, strict=False)) if a != b]
        if len(sizes) == len(sizes_alone)
        else [0]
        for sizes, sizes_alone in zip(look.sizes, alone.sizes, strict=True)
    ]
    if look.dims is None:  # samples written to places that they share
        return not differing[0] and any(differing[1:])
    return any(dim in look.dims for dim in differing[0])


def _own_results_differ(look: Look, alone: Look, size: int) -> list[int] | None:
    """Return the samples whose own result is not that of the batch; None if it is not known."""
    values = look.values
    if values is None or look.dims is None or values._version != look.version:
        return None
    sizes = list(zip(look.sizes[0], alone.sizes[0], strict=True))
    if [pair for pair in sizes if pair[0] != pair[1]] != [(size, 1)]:
        return None
    at = sizes.index((size, 1))
    reduce = torch.amin if look.name in ("all", "amin", "min") else torch.amax
    if look.name in ("all", "any"):
        values = values != 0
    others = [dim for dim in look.dims if dim != at]
    own = reduce(values, others, keepdim=True) if others else values
    differs = (own != reduce(own, at, keepdim=True)).movedim(at, 0).reshape(size, -1).any(1)
    samples: list[int] = differs.nonzero().flatten().tolist()
    return samples


@cache
def _traits(func: Any) -> tuple[str, int, Any, tuple[tuple[int, str], ...]]:
    """Return what matters of an operation.

    Its name if it is noted, else ""; the place and the default of its argument `dim`; and the
    places and names of the arguments that it writes to.
    """
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order operator
        return "", -1, None, ()
    arguments = schema.arguments
    written = tuple(
        (at, argument.name)
        for at, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    name = func.overloadpacket.__name__ if func.namespace == "aten" else ""
    if name in ("max", "min") and func._overloadname == "other":  # elementwise
        name = ""
    at = next((at for at, argument in enumerate(arguments) if argument.name in _DIM), -1)
    default = arguments[at].default_value if at >= 0 else None
    return name if name in NOTED else "", at, default, written


def _tensors(values: Any) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _is_in_order(index: Tensor, tensor: Tensor, dim: int) -> bool:
    """Whether an index along a dimension of a tensor has each row at its own place."""
    size = tensor.shape[dim] if tensor.ndim else 1
    rows = index.movedim(dim, 0) if index.ndim == tensor.ndim > 1 else index
    if not size or not rows.ndim or rows.shape[0] != size:
        return False
    places = torch.arange(size, device=index.device)
    return torch.equal(rows, places.view(-1, *[1] * (rows.ndim - 1)).expand_as(rows))


def _storage(tensor: Tensor) -> int:
    """Return the address of a tensor's memory; 0 if it has none of its own."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse and nested tensors
        return 0
