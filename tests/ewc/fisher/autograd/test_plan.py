"""Rows are given to the sample they belong to, however they are folded and whatever came before.

Each model here was once given a wrong Fisher: its first batch, or a few samples of one, looked like
another arrangement of the rows.
"""

import warnings
from collections.abc import Callable, Sequence

import pytest
import torch
from support.architectures import Custom
from support.reference import assert_equal_fishers, batch_of_one_fisher, the_target
from torch import Tensor, nn
from torch.nn import functional as F

import ewc
from ewc.fisher.autograd.plan import Plan

Inputs = tuple[Tensor, ...]


def check(model: nn.Module, *batches: Inputs) -> None:
    """The empirical Fisher over these batches, in this order, is the mean of the loops; nothing is
    said of mixing.
    """
    torch.manual_seed(1)
    model = model.double().eval()
    labeled = []
    for batch in batches:
        inputs = tuple(x.double() if x.is_floating_point() else x for x in batch)
        with torch.no_grad():
            outputs = model(*inputs)
        labeled.append((inputs, torch.randint(outputs.shape[-1], outputs.shape[:-1])))
    total = sum(targets.numel() for _, targets in labeled)
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for inputs, targets in labeled:
        one = batch_of_one_fisher(model, inputs, targets, the_target)
        for name, fisher in one.items():
            expected[name] += fisher * targets.numel() / total
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = ewc.fisher_diagonal(model, labeled, kind="empirical")
    assert_equal_fishers(actual, expected)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tail(rows: Tensor, m: Custom) -> Tensor:
    first, second = rows.chunk(2)
    return m.head(torch.cat([first, second, (first - second).abs()], -1))


def pair(encode: Callable[[Custom, Tensor], Tensor], width: int = 4, **parts: nn.Module) -> Custom:
    """Both halves of a pair through one encoder, in one pass."""
    return Custom(
        lambda m, a, b: tail(encode(m, torch.cat([a, b])), m), head=nn.Linear(3 * width, 3), **parts
    )


@pytest.mark.parametrize(("batch", "length"), [(4, 4), (8, 16), (5, 7), (4, 1), (6, 10)])
def test_pairs_through_one_encoder(batch: int, length: int) -> None:
    model = pair(lambda m, x: m.a(x).tanh()[:, 0], a=nn.Linear(4, 4))
    check(model, (normal(batch, length, 4), normal(batch, length, 4, seed=1)))


def test_pairs_through_a_transformer() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = pair(lambda m, x: m.a(x)[:, 0], a=layer)
    check(model, (normal(8, 16, 4), normal(8, 16, 4, seed=1)))


def test_pairs_have_a_rule(plans: list[Plan]) -> None:
    model = pair(lambda m, x: m.a(x).tanh()[:, 0], a=nn.Linear(4, 4))
    check(model, (normal(8, 7, 4), normal(8, 7, 4, seed=1)))
    assert plans[0].one_by_one == []


def segments(lengths: Sequence[int], rows: int) -> Tensor:
    """A (samples, rows) matrix that sums each sample's own rows."""
    matrix, start = torch.zeros(len(lengths), rows, dtype=torch.float64), 0
    for n, length in enumerate(lengths):
        matrix[n, start : start + length] = 1.0
        start += length
    return matrix


def pool_by_matrix(rows: Tensor, lengths: Sequence[int]) -> Tensor:
    return segments(lengths, len(rows)) @ rows


def pool_by_sparse(rows: Tensor, lengths: Sequence[int]) -> Tensor:
    return torch.sparse.mm(segments(lengths, len(rows)).to_sparse(), rows)


def pool_by_mask(rows: Tensor, lengths: Sequence[int]) -> Tensor:
    return (segments(lengths, len(rows)).unsqueeze(-1) * rows).sum(1)


def pool_by_expanded_mask(rows: Tensor, lengths: Sequence[int]) -> Tensor:
    mask = segments(lengths, len(rows)).unsqueeze(-1)
    return (rows.expand(len(lengths), -1, -1) * mask).sum(1)


def pool_by_segment(rows: Tensor, lengths: Sequence[int]) -> Tensor:
    return torch.segment_reduce(rows, "sum", lengths=torch.tensor(lengths))


def pool_by_bag(rows: Tensor, lengths: Sequence[int]) -> Tensor:
    starts = torch.tensor([0, *lengths]).cumsum(0)[:-1]
    return F.embedding_bag(torch.arange(len(rows)), rows, starts, mode="sum")


POOLS = [
    pool_by_matrix, pool_by_sparse, pool_by_mask, pool_by_expanded_mask, pool_by_segment,
    pool_by_bag,
]  # fmt: skip


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("lengths", [(3, 3, 2, 1, 3, 6), (6, 1, 5, 1, 4, 1), (2, 2, 2, 2, 2, 2)])
def test_kept_rows_pooled_after_a_batch_without_padding(
    pool: Callable[[Tensor, Sequence[int]], Tensor], lengths: tuple[int, ...]
) -> None:
    """Of 36 rows all are kept, then 18 in segments that happen to look like three for each, then
    other numbers.
    """

    def forward(m: Custom, x: Tensor) -> Tensor:
        kept = x[..., 0] > -50
        rows = m.a(x[kept]).tanh()
        return m.b(pool(rows, kept.sum(1).tolist()))

    model = Custom(forward, a=nn.Linear(4, 5), b=nn.Linear(5, 3))
    x = normal(3, 6, 6, 4)
    for n, length in enumerate(lengths):
        x[1, n, length:] = -100
        x[2, 5 - n, length:] = -100
    check(model, (x[0],), (x[1],), (x[2],), (x[1].flip(0),))


@pytest.mark.parametrize("batch", [4, 6, 9])
@pytest.mark.parametrize("length", [4, 7, 10])
def test_segments_pooled_by_a_matrix_product(batch: int, length: int) -> None:
    """Rows lie (position, sample); the pooling matrix says so, not a shape."""

    def forward(m: Custom, x: Tensor) -> Tensor:
        rows = m.a(x.transpose(0, 1).flatten(0, 1)).tanh()
        matrix = torch.eye(len(x), dtype=x.dtype).repeat(1, x.shape[1])
        return m.b(matrix @ rows)

    check(Custom(forward, a=nn.Linear(4, 5), b=nn.Linear(5, 3)), (normal(batch, length, 4),))


def time_first(layer: nn.Module) -> Custom:
    def forward(m: Custom, x: Tensor) -> Tensor:
        x = x.transpose(0, 1).contiguous()
        out = m.layer(x, x, x)[0] if isinstance(layer, nn.MultiheadAttention) else m.layer(x)
        return m.head(out.mean(0))

    return Custom(forward, layer=layer, head=nn.Linear(4, 3))


@pytest.mark.parametrize(
    "layer",
    [lambda: nn.MultiheadAttention(4, 2), lambda: nn.TransformerEncoderLayer(4, 2, 8)],
    ids=["attention", "encoder"],
)
@pytest.mark.parametrize("lengths", [(1, 5, 3), (5, 1, 2), (2, 4, 1)])
def test_time_first_with_a_first_batch_of_one_position(
    layer: Callable[[], nn.Module], lengths: tuple[int, ...]
) -> None:
    check(time_first(layer()), *((normal(4, length, 4, seed=length),) for length in lengths))


def test_position_ids_that_are_shared_unless_padded() -> None:
    def forward(m: Custom, ids: Tensor) -> Tensor:
        kept = (ids > 0).long()
        places = torch.arange(ids.shape[1])[None] if bool(kept.all()) else kept.cumsum(1) - kept
        return m.head((m.words(ids) + m.places(places)).tanh().sum(1))

    model = Custom(
        forward, words=nn.Embedding(7, 4), places=nn.Embedding(6, 4), head=nn.Linear(4, 3)
    )
    full = torch.arange(24).reshape(4, 6) % 6 + 1
    padded = full.clone()
    padded[0, :2] = padded[2, :4] = 0
    check(model, (full,), (padded,), (full,))
    check(model, (padded,), (full,))


def test_attributes_that_change_from_batch_to_batch() -> None:
    def scaled(m: Custom, x: Tensor) -> Tensor:
        factor = x.shape[1] - 3
        return torch.addmm(m.c, x[:, :4], m.w, alpha=factor, beta=factor)

    model = Custom(scaled, c=nn.Parameter(normal(3)), w=nn.Parameter(normal(4, 3, seed=1)))
    check(model, (normal(4, 4),), (normal(4, 5),), (normal(4, 6),), (normal(4, 4),))

    def counted(m: Custom, ids: Tensor) -> Tensor:
        rows = F.embedding(ids, m.w, scale_grad_by_freq=ids.shape[1] > 4)
        return m.b(rows.tanh().sum(1))

    model = Custom(counted, w=nn.Parameter(normal(6, 4)), b=nn.Linear(4, 3))
    ids = torch.tensor([[1, 0, 0, 5, 0], [2, 2, 1, 4, 2], [0, 1, 1, 1, 1], [2, 0, 0, 0, 0]])
    check(model, (ids[:, :4],), (ids,), (ids[:, :4],))


def test_a_bare_parameter_whose_sample_dimension_changes() -> None:
    def forward(m: Custom, x: Tensor) -> Tensor:
        even = x.shape[1] % 2 == 0  # then the samples come second
        scaled = (x.transpose(0, 1) if even else x) * m.g
        return m.b(scaled.tanh().sum(0 if even else 1))

    model = Custom(forward, g=nn.Parameter(normal(4)), b=nn.Linear(4, 3))
    check(model, (normal(4, 4, 4),), (normal(4, 3, 4),), (normal(4, 8, 4),), (normal(8, 4, 4),))


def test_rows_with_small_gradients_are_given_to_their_sample() -> None:
    """The first row of each sample weighs a million times more than the others."""

    def forward(m: Custom, x: Tensor) -> Tensor:
        """Small rows are computed in the reverse order of the samples."""
        large = m.a(x[:, :1])
        small = m.a(torch.cat([x[:, :1], x[:, 1:].flip(0)], 1))
        weights = torch.tensor([1.0] + [1e-6] * (x.shape[1] - 1), dtype=x.dtype).view(-1, 1)
        both = torch.cat([small[:, :1] + 0 * large, small[:, 1:].flip(0)], 1)
        return m.b((both.tanh() * weights).sum(1))

    model = Custom(forward, a=nn.Linear(4, 5), b=nn.Linear(5, 3))
    check(model, (normal(6, 4, 4),))


def test_a_hook_that_looks_across_the_batch_is_not_trusted() -> None:
    """Clipping a gradient by the norm of the batch would be another gradient alone."""

    def forward(m: Custom, x: Tensor) -> Tensor:
        hidden = m.a(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda grad: grad / grad.norm())
        return m.b(hidden.tanh())

    check(Custom(forward, a=nn.Linear(4, 5), b=nn.Linear(5, 3)), (normal(6, 4),))


def test_a_function_of_the_users_own_with_the_name_of_an_operation() -> None:
    class Mul(torch.autograd.Function):
        """Reverses the samples, which a product does not."""

        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.flip(0)

        @staticmethod
        def backward(ctx: object, grad: Tensor) -> Tensor:
            return grad.flip(0)

    model = Custom(
        lambda m, x: m.b(Mul.apply(m.a(x.flip(0)).tanh())), a=nn.Linear(4, 5), b=nn.Linear(5, 3)
    )
    check(model, (normal(6, 4),))
