"""Rows are given to the sample they belong to, and samples that mix are taken one by one.

Each model here was once given a wrong Fisher: its first batch, or a few samples of one, looked like
another arrangement of the rows, or no graph showed the difference.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from support.fisher import (
    EXACT,
    Custom,
    assert_equal_fishers,
    batch_of_one_fisher,
    check_against_loop,
    in_float64,
    perceptron,
    table,
    the_target,
)
from torch import Tensor, nn
from torch.nn import functional as F

import ewc
from ewc.fisher.per_sample.plan import Plan

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


def starts(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)[:-1]


POOLS: dict[str, Callable[[Tensor, Sequence[int]], Tensor]] = {
    "matrix": lambda rows, n: segments(n, len(rows)) @ rows,
    "sparse": lambda rows, n: torch.sparse.mm(segments(n, len(rows)).to_sparse(), rows),
    "mask": lambda rows, n: (segments(n, len(rows)).unsqueeze(-1) * rows).sum(1),
    "expanded": lambda rows, n: (
        rows.expand(len(n), -1, -1) * segments(n, len(rows)).unsqueeze(-1)
    ).sum(1),
    "segment": lambda rows, n: torch.segment_reduce(rows, "sum", lengths=torch.tensor(n)),
    "bag": lambda rows, n: F.embedding_bag(torch.arange(len(rows)), rows, starts(n), mode="sum"),
}


@pytest.mark.parametrize("pool", POOLS.values(), ids=POOLS)
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


@pytest.mark.parametrize("mask", [-1e4, -1e9, torch.finfo(torch.float64).min])
def test_mixing_is_seen_beside_a_masked_logit(mask: float) -> None:
    def forward(m: Custom, x: Tensor) -> Tensor:
        logits = m.a(x)
        return (logits + logits.mean(0)).masked_fill(torch.tensor([True, False, False]), mask)

    torch.manual_seed(0)
    model = Custom(forward, a=nn.Linear(4, 3)).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randint(1, 3, (6,))
    with pytest.warns(ewc.EWCWarning, match="depends on the other samples"):
        actual = ewc.fisher_diagonal(model, [(x, y)], kind="empirical")
    assert_equal_fishers(actual, batch_of_one_fisher(model, (x,), y, the_target))


def test_float64_outputs_over_float32_insides_do_not_mix() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(40, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh())
    model = Custom(lambda m, x: m.b(m.a(x)).double(), a=body, b=nn.Linear(300, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ewc.fisher_diagonal(model, [torch.randn(600, 40)], kind="sampled")


def test_mixing_is_seen_beside_a_large_output() -> None:
    """A logit of -9000, or a regression in other units, does not excuse the others."""

    def forward(m: Custom, x: Tensor) -> Tensor:
        out = m.a(x)
        return torch.cat([out[:, :1] - 9000, out[:, 1:] + 0.2 * out[:, 1:].mean(0)], 1)

    torch.manual_seed(0)
    model = Custom(forward, a=nn.Linear(4, 3))
    with pytest.warns(ewc.EWCWarning, match="depends on the other samples"):
        ewc.fisher_diagonal(model, [torch.randn(6, 4)])


def test_an_output_that_is_zero_up_to_rounding_does_not_mix() -> None:
    def forward(m: Custom, a: Tensor, b: Tensor) -> Tensor:
        return m.h(m.a(a) - m.a(b.flip(-1).flip(-1)))

    torch.manual_seed(0)
    model = Custom(forward, a=nn.Linear(300, 40), h=nn.Linear(40, 3, bias=False))
    a, b = torch.randn(9, 300), torch.randn(9, 300)
    b[-1] = a[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ewc.fisher_diagonal(model, [((a, b),)], kind="sampled")


@pytest.mark.parametrize(
    "mix",
    [lambda x: x - x.mean(0), lambda x: x.cumsum(0), lambda x: x / x.abs().max()],
    ids=["all by all", "the later by the earlier", "all but the first"],
)
def test_a_batch_that_mixes_samples_is_taken_one_by_one_with_a_warning(
    mix: Callable[[Tensor], Tensor],
) -> None:
    model, (x,) = in_float64(lambda: (perceptron(nn.Tanh()), table(5, 8)))
    model = nn.Sequential(Custom(lambda m, x: mix(x)), model)
    x[0] *= 100
    y = torch.randint(3, (5,))
    with pytest.warns(UserWarning, match="depends on the other samples"):
        actual = ewc.fisher_diagonal(model, [(x, y)], kind="empirical")
    assert_equal_fishers(actual, batch_of_one_fisher(model, (x,), y, the_target))


@pytest.mark.parametrize("number", [1, 3])
def test_a_later_batch_that_mixes_samples_is_found_out(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever it is, though batches with the same graph are checked less and less often."""
    monkeypatch.setattr("ewc.fisher.passes.JOINED_SAMPLES", 1)
    shrink = Custom(lambda m, x: x / x.abs().max().clamp(min=9))
    model, (x,) = in_float64(lambda: (perceptron(nn.Tanh()), table(30, 8)))
    model = nn.Sequential(shrink, model)
    x[6 * number + 2, 0] = 100
    y = torch.randint(3, (30,))
    with pytest.warns(UserWarning, match="depends on the other samples"):
        actual = ewc.fisher_diagonal(
            model, list(zip(x.split(6), y.split(6), strict=True)), kind="empirical"
        )
    assert_equal_fishers(actual, batch_of_one_fisher(model, (x,), y, the_target))


def sorted_within(m: Custom, x: Tensor) -> Tensor:
    order = x[:, 0, 0].argsort()
    return m.b(m.a(m.a(x[order]).tanh()[order.argsort()])).sum(1)


def without_padding(m: Custom, x: Tensor) -> Tensor:
    kept = x[..., 0] > -50
    return m.b(torch.zeros_like(x).index_put((kept,), m.a(x[kept]).tanh())).sum(1)


def routed(m: Custom, x: Tensor) -> Tensor:
    rows = x.flatten(0, 1)
    chosen = (rows[:, 0] > 0).nonzero()[:, 0]
    return m.b(rows.index_add(0, chosen, m.a(rows[chosen]).tanh()).view_as(x)).sum(1)


@pytest.mark.parametrize("forward", [sorted_within, without_padding, routed])
def test_rows_that_go_where_the_data_says(forward: Callable[..., Tensor]) -> None:
    """The first batch is in order, and full; the next ones have the same graph and are not."""
    torch.manual_seed(0)
    model = Custom(forward, a=nn.Linear(4, 4), b=nn.Linear(4, 3)).double()
    x = torch.randn(3, 4, 6, 4, dtype=torch.float64)
    x[0, :, :, 0] = torch.arange(1.0, 5.0).view(4, 1)
    for n, length in enumerate((2, 4, 4)):  # of 24 rows 16 are left: as many for each as it seems
        x[1, n, length:] = -100
    x[2, 0, 3:] = -100
    y = torch.randint(3, (3, 4))
    expected = batch_of_one_fisher(model, (x.flatten(0, 1),), y.flatten(), the_target)
    together = [(x.flatten(0, 1), y.flatten())]
    for batches in (together, list(zip(x, y, strict=True))):
        assert_equal_fishers(ewc.fisher_diagonal(model, batches, kind="empirical"), expected)


def test_a_parameter_cut_to_the_length_of_each_batch() -> None:
    def forward(m: Custom, x: Tensor) -> Tensor:
        length = x.shape[1]
        return m.b((x + m.places.split([length, 6 - length])[0]).tanh().sum(1))

    model = Custom(forward, places=nn.Parameter(torch.randn(6, 4)), b=nn.Linear(4, 3)).double()
    x, y = torch.randn(3, 4, 5, 4, dtype=torch.float64), torch.randint(3, (3, 4))
    batches = [(one[:, :length], two) for one, two, length in zip(x, y, (5, 3, 1), strict=True)]
    each = [batch_of_one_fisher(model, (a,), b, the_target) for a, b in batches]
    expected = {name: sum(fisher[name] for fisher in each) / 3 for name in each[0]}
    assert_equal_fishers(ewc.fisher_diagonal(model, batches, kind="empirical"), expected)


def test_a_mask_dropped_where_there_is_no_padding_costs_no_speed(plans: list[Plan]) -> None:
    def forward(m: Custom, x: Tensor) -> Tensor:
        padding = x[..., :1] < -50
        return m.b((x.masked_fill(padding, 0) if padding.any() else x) @ m.w).sum(1)

    model = Custom(forward, w=nn.Parameter(torch.randn(8, 6)), b=nn.Linear(6, 3))
    model, (x,) = in_float64(lambda: (model, table(6, 4, 8)))
    x[1, 2:] = -100
    check_against_loop(model, (x,))
    assert plans[0].one_by_one == []


def test_a_graph_that_depends_on_the_batch_size_is_taken_one_by_one() -> None:
    model = Custom(
        lambda m, x: m.a(x) if len(x) > 4 else m.a(x.clone()), a=nn.Linear(8, 3)
    ).double()
    model2 = Custom(
        lambda m, x: torch.cat([m.a(row[None]) for row in x]), a=nn.Linear(8, 3)
    ).double()
    x = torch.randn(6, 8, dtype=torch.float64)
    y = torch.randint(3, (6,))
    for each in (model, model2):
        expected = batch_of_one_fisher(each, (x,), y, the_target)
        assert_equal_fishers(ewc.fisher_diagonal(each, [(x, y)], kind="empirical"), expected)


def hooked(m: Custom, ids: Tensor) -> Tensor:
    """Row 0 of the table gets no gradient, by a hook between the table and its use."""
    rows = m.table.view_as(m.table)
    if rows.requires_grad:
        rows.register_hook(lambda grad: grad * (torch.arange(5) > 0)[:, None])
    return m.b(nn.functional.embedding(ids, rows).mean(1))


@pytest.mark.parametrize("ids", [[[1, 2], [0, 3], [4, 2]], [[0, 1], [3, 2], [4, 4]]])
def test_a_hook_that_changes_the_gradients_of_some_samples_only(ids: list[list[int]]) -> None:
    torch.manual_seed(0)
    model = Custom(hooked, table=nn.Parameter(torch.randn(5, 4)), b=nn.Linear(4, 3)).double()
    x, y = torch.tensor(ids), torch.tensor([0, 1, 2])
    for order in ([0, 1, 2], [1, 0, 2], [2, 1, 0]):
        found = ewc.fisher_diagonal(model, [(x[order], y[order])], kind="empirical")
        assert_equal_fishers(found, batch_of_one_fisher(model, (x,), y, the_target))
        assert not found["table"][0].any()
        assert found["table"][1:].any()


def with_gradient(change: Callable[[Tensor], Tensor]) -> Callable[[Custom, Tensor], Tensor]:
    """A network in which a hook changes the gradients of its hidden layer."""

    def forward(m: Custom, x: Tensor) -> Tensor:
        hidden = m.a(x)
        if hidden.requires_grad:
            hidden.register_hook(change)
        return m.b(hidden.tanh())

    return forward


@pytest.mark.parametrize(
    "change",
    [
        lambda g: g.clamp(-0.05, 0.05),
        lambda g: g * (g.abs() > 0.02),
        lambda g: g.sign(),
        lambda g: g.relu(),
        lambda g: g * (g.abs() >= g.abs().median(-1, keepdim=True).values),
    ],
    ids=["clipped", "small ones dropped", "signs", "positive ones", "larger half"],
)
@pytest.mark.parametrize("size", [1, 6, 20])
def test_exact_refuses_gradients_that_are_not_linear(
    change: Callable[[Tensor], Tensor], size: int
) -> None:
    """The labels' expectation is then not that of any other vectors. The other kinds are right."""
    torch.manual_seed(0)
    model = Custom(with_gradient(change), a=nn.Linear(4, 6), b=nn.Linear(6, 3)).double()
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.randint(3, (20,))
    with pytest.raises(ValueError, match=r"those of a\.bias are not: a hook or"):
        ewc.fisher_diagonal(model, [(x[:size],)])
    found = ewc.fisher_diagonal(model, [(x, y)], kind="empirical")
    assert_equal_fishers(found, batch_of_one_fisher(model, (x,), y, the_target))


def test_a_refusal_is_not_lost_where_batches_are_joined() -> None:
    """The first batch has one position, and no hook."""

    def forward(m: Custom, x: Tensor) -> Tensor:
        hidden = m.a(x[:, 0])
        for position in range(1, x.shape[1]):
            hidden = (m.a(x[:, position]) + hidden).tanh()
            if hidden.requires_grad:
                hidden.register_hook(lambda g: g.clamp(-0.05, 0.05))
        return m.b(hidden)

    model = Custom(forward, a=nn.Linear(4, 6), b=nn.Linear(6, 3)).double()
    x = torch.randn(5, 2, 3, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match="are not: a hook"):
        ewc.fisher_diagonal(model, [x[0, :, :1], *x[1:]])


@pytest.mark.parametrize("gain", [False, True], ids=["rules", "one by one"])
def test_samples_that_are_longer_in_their_batch(gain: bool) -> None:
    """Padding is cut off, which samples of less than full length show only when they are alone."""

    def forward(m: Custom, x: Tensor) -> Tensor:
        longest = int((x[..., 0] > -50).sum(1).max())
        hidden = m.gain(m.a(x[:, :longest])) if gain else m.a(x[:, :longest]).tanh()
        return m.b(hidden)

    torch.manual_seed(0)
    model = Custom(forward, a=nn.Linear(4, 6), gain=nn.PReLU(), b=nn.Linear(6, 3)).double()
    x = torch.randn(6, 5, 4, dtype=torch.float64)
    x[[1, 2, 4], 2:] = -100  # not the last one, which is always run alone too
    found = []
    for kind in ("exact", "sampled"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*depends on the other samples")
            found.append(ewc.fisher_diagonal(model, [x], kind=kind))
    if gain:  # found out: each sample is taken alone
        expected = batch_of_one_fisher(model, (x,), None, EXACT["categorical"])
        assert_equal_fishers(found[0], expected)
    assert all(one["a.weight"].any() for one in found)


def test_exact_takes_a_hook_that_is_linear() -> None:
    torch.manual_seed(0)
    model = Custom(with_gradient(lambda g: -3 * g), a=nn.Linear(4, 6), b=nn.Linear(6, 3))
    check_against_loop(model.double(), (torch.randn(6, 4, dtype=torch.float64),))


@pytest.mark.parametrize("norm", [nn.InstanceNorm2d(4), nn.GroupNorm(4, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_bias_without_effect_is_not_taken_for_one_that_is_not_linear(
    norm: nn.Module, dtype: torch.dtype, plans: list[Plan]
) -> None:
    """The norm takes it out again, so its gradient is the rounding of a long sum that cancels."""
    for seed in range(4):
        torch.manual_seed(seed)
        layers = [nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
        model = nn.Sequential(*layers, nn.Linear(16, 3)).to(dtype)
        found = ewc.fisher_diagonal(model, [3 * torch.randn(8, 1, 48, 48, dtype=dtype)])
        assert plans[-1].one_by_one == []
        assert found["0.bias"].max() < 1e-6 * found["0.weight"].max()


def capacity(rank: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Custom, Tensor], Tensor]:
    """Each token goes to its expert, unless as many others as it takes go there before it."""

    def forward(m: Custom, x: Tensor) -> Tensor:
        score, expert = m.router(x).softmax(-1).max(-1)
        places = max(1, len(x) // 3)
        hidden = x
        for number, layer in enumerate((m.a, m.b, m.c)):
            rows = (expert == number).nonzero()[:, 0]
            rows = rows[rank(score, rows)][:places]
            hidden = hidden.index_add(0, rows, layer(x[rows]) * score[rows, None])
        return m.head(hidden.tanh())

    return forward


def by_cumsum(m: Custom, x: Tensor) -> Tensor:
    score, expert = m.router(x).softmax(-1).max(-1)
    chosen = nn.functional.one_hot(expert, 3)
    kept = ((chosen.cumsum(0) * chosen).sum(1) <= max(1, len(x) // 3)).unsqueeze(1)
    each = torch.stack([m.a(x), m.b(x), m.c(x)], 1)
    taken = each[torch.arange(len(x)), expert] * score.unsqueeze(1)
    return m.head((x + taken * kept).tanh())


def exit_if(sure: Callable[[Tensor], bool]) -> Callable[[Custom, Tensor], Tensor]:
    """The second layer is left out where the first is sure of all samples of the batch."""

    def forward(m: Custom, x: Tensor) -> Tensor:
        logits: Tensor = m.head(x)
        return logits if sure(logits.softmax(-1).amax(-1)) else logits + m.head(m.a(x).tanh())

    return forward


def minimum_to_maximum(m: Custom, x: Tensor) -> Tensor:
    hidden = m.a(x)
    low, high = hidden.min(), hidden.max()
    return m.head(((hidden - low) / (high - low)).tanh())


def sometimes(other: Callable[[Tensor], Tensor]) -> Callable[[Custom, Tensor], Tensor]:
    """Some samples have a hidden layer that depends on others."""

    def forward(m: Custom, x: Tensor) -> Tensor:
        hidden = m.a(x).tanh()
        return m.head(torch.where(x[:, :1] > 0.8, other(hidden), hidden))

    return forward


def similar(m: Custom, x: Tensor) -> Tensor:
    directions = nn.functional.normalize(x)
    return m.head((directions @ directions.T > 0.9).to(x) @ m.a(x).tanh())


@pytest.mark.parametrize(
    "forward",
    [
        capacity(lambda score, rows: torch.arange(len(rows))),
        capacity(lambda score, rows: score[rows].argsort(descending=True)),
        capacity(lambda score, rows: score[rows].topk(len(rows)).indices),
        by_cumsum,
        exit_if(lambda sure: bool((sure > 0.45).all())),
        exit_if(lambda sure: sure.min().item() > 0.45),
        exit_if(lambda sure: float((sure > 0.45).double().mean()) > 0.6),
        exit_if(lambda sure: all(value > 0.45 for value in sure.tolist())),
        minimum_to_maximum,
        similar,
        sometimes(lambda hidden: hidden.roll(1, 0)),
        sometimes(lambda hidden: F.pad(hidden, (0, 0, 1, 0))[:-1]),
        sometimes(lambda hidden: hidden[torch.arange(len(hidden)).flip(0)]),
        sometimes(lambda hidden: F.avg_pool1d(hidden.T[None], 3, 1, 1)[0].T),
    ],
    ids=[
        *("in order", "sorted", "topk", "cumsum"),
        *("all sure", "least sure", "most sure", "listed", "min-max"),
        *("product", "rolled", "cut", "indexed", "window"),
    ],
)
@pytest.mark.parametrize("size", [2, 4, 9])
def test_samples_that_mix_in_some_batches_only_are_taken_one_by_one(
    forward: Callable[[Custom, Tensor], Tensor], size: int
) -> None:
    """Whichever samples and batches mix, those before them are right too."""
    for seed in range(12):
        torch.manual_seed(seed)
        layers = {name: nn.Linear(4, 4) for name in "abc"}
        model = Custom(forward, router=nn.Linear(4, 3), **layers, head=nn.Linear(4, 3)).double()
        x, y = torch.randn(18, 4, dtype=torch.float64), torch.randint(3, (18,))
        expected = batch_of_one_fisher(model, (x,), y, the_target)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*depends on the other samples")
            batches = list(zip(x.split(size), y.split(size), strict=True))
            found = ewc.fisher_diagonal(model, batches, kind="empirical")
        assert_equal_fishers(found, expected)


def test_batches_of_one_sample_do_not_mix_though_they_are_joined() -> None:
    torch.manual_seed(0)
    model = Custom(minimum_to_maximum, a=nn.Linear(4, 4), head=nn.Linear(4, 3)).double()
    x, y = torch.randn(9, 4, dtype=torch.float64), torch.randint(3, (9,))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ewc.EWCWarning)
        batches = list(zip(x.split(1), y.split(1), strict=True))
        found = ewc.fisher_diagonal(model, batches, kind="empirical")
    assert_equal_fishers(found, batch_of_one_fisher(model, (x,), y, the_target))
    with pytest.warns(ewc.EWCWarning, match="depends on the other samples"):
        ewc.fisher_diagonal(model, [*batches, (x[:2], y[:2])], kind="empirical")
    model = Custom(lambda m, x: m.a(nn.functional.dropout(x)), a=nn.Linear(4, 3)).double()
    with pytest.warns(ewc.EWCWarning, match="is random in eval mode"):
        ewc.fisher_diagonal(model, batches, kind="empirical")


def test_what_is_read_of_all_samples_but_changes_none_costs_no_speed(plans: list[Plan]) -> None:
    """A mask that is dropped where it hides nothing is compared for the samples it leaves whole."""
    runs = []

    def forward(m: Custom, x: Tensor) -> Tensor:
        runs.append(len(x))
        hidden = x[..., :1] < -50
        return m.b((x.masked_fill(hidden, 0) if hidden.any() else x) @ m.w).sum(1)

    model = Custom(forward, w=nn.Parameter(torch.randn(8, 6)), b=nn.Linear(6, 3)).double()
    x = torch.randn(8, 4, 8, dtype=torch.float64)
    x[:6, 2:] = -100
    ewc.fisher_diagonal(model, [x], kind="sampled")
    assert plans[-1].one_by_one == []
    assert runs.count(1) == 2  # the two without padding


def test_mixing_that_no_operation_shows_says_that_earlier_batches_may_be_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ewc.fisher.passes.JOINED_SAMPLES", 1)
    shift = [0.0]

    def forward(m: Custom, x: Tensor) -> Tensor:
        return m.a(x + shift[0] * len(x))

    model = Custom(forward, a=nn.Linear(4, 3)).double()

    def batches() -> Iterator[Tensor]:
        for shift[0] in (0.0, 0.0, 1.0):
            yield torch.randn(6, 4, dtype=torch.float64)

    with pytest.warns(ewc.EWCWarning, match="in batch 2, and the batches before it were taken"):
        ewc.fisher_diagonal(model, batches(), kind="sampled")


def masked_weight(m: Custom, x: Tensor) -> Tensor:
    weight = m.w.t()
    if weight.requires_grad:
        weight.register_hook(lambda grad: grad * (torch.arange(4.0) > 1).double().unsqueeze(1))
    return x @ weight


def cloned_weight(m: Custom, x: Tensor) -> Tensor:
    weight = m.w.clone()
    if weight.requires_grad:
        weight.register_hook(lambda grad: 2 * grad)
    return F.linear(x, weight)


def hooked_operation(m: Custom, x: Tensor) -> Tensor:
    out = F.linear(x, m.w)
    if out.grad_fn is not None:
        out.grad_fn.register_prehook(lambda grads: (3 * grads[0],))
    return out


def clipped_by_the_norm_of_many(m: Custom, x: Tensor) -> Tensor:
    hidden = F.linear(x, m.w)
    if hidden.requires_grad:
        hidden.register_hook(lambda grad: grad / max(1.0, float(grad.norm()) / 3))
    return hidden * 1.0


def test_hooks_are_seen_though_the_first_class_is_impossible() -> None:
    """The first gradient at the output is then zero, and nothing could be compared with it."""

    def forward(m: Custom, x: Tensor) -> Tensor:
        logits = cloned_weight(m, x)
        return torch.cat([torch.full_like(logits[:, :1], -1e9), logits], 1)

    model, x = Custom(forward, w=nn.Parameter(normal(3, 4))), normal(6, 4)
    assert_equal_fishers(ewc.fisher_diagonal(model, [x]), ewc.fisher_diagonal(model, x.split(1)))


@pytest.mark.parametrize(
    "forward", [masked_weight, cloned_weight, hooked_operation, clipped_by_the_norm_of_many]
)
def test_hooks_that_the_graph_does_not_show(forward: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    model = Custom(forward, w=nn.Parameter(normal(3, 4)))
    x, y = normal(50, 4), torch.randint(3, (50,))
    expected = batch_of_one_fisher(model, (x,), y, the_target)
    assert_equal_fishers(ewc.fisher_diagonal(model, [(x, y)], kind="empirical"), expected)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("kind", ["exact", "empirical"])
def test_outputs_without_a_last_dimension(likelihood: str, kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)).double()
    x, y = normal(40, 4), torch.rand(40).double()
    wide = nn.Sequential(*list(model)[:1])
    labels = the_target if kind == "empirical" else EXACT[likelihood]
    expected = batch_of_one_fisher(wide, (x,), y.unsqueeze(1), labels, likelihood)
    for size in (40, 7, 1):
        batches = list(zip(x.split(size), y.split(size), strict=True))
        actual = ewc.fisher_diagonal(model, batches, kind=kind, likelihood=likelihood)
        assert_equal_fishers(actual, expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.bool])
def test_integers_multiplied_by_a_parameter(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Custom(lambda m, x: m.a(x * m.w), w=nn.Parameter(normal(4)), a=nn.Linear(4, 3).double())
    x = torch.randint(0, 2**31 - 1, (6, 4)).to(dtype)
    y = torch.randint(3, (6,))
    expected = batch_of_one_fisher(model, (x,), y, the_target)
    assert_equal_fishers(ewc.fisher_diagonal(model, [(x, y)], kind="empirical"), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_rows_in_another_order_are_measured_in_half_precision_too(dtype: torch.dtype) -> None:
    def forward(m: Custom, x: Tensor) -> Tensor:
        order = torch.arange(x[..., 0].numel()).view(len(x), -1).t().flatten()
        rows = m.a(x.flatten(0, 1)[order]).tanh()
        return m.b(rows[order.argsort()].view(*x.shape[:2], -1).sum(1))

    torch.manual_seed(0)
    model = Custom(forward, a=nn.Linear(4, 5), b=nn.Linear(5, 3)).double()
    x, y = normal(8, 4, 4), torch.randint(3, (8,))
    expected = batch_of_one_fisher(model, (x,), y, the_target)
    actual = ewc.fisher_diagonal(model.to(dtype), [(x.to(dtype), y)], kind="empirical")
    for name, values in expected.items():
        error = (actual[name].double() - values).norm() / values.norm()
        assert float(error) < 0.02


def test_a_lookup_that_writes_to_a_tied_weight() -> None:
    """The rows are short enough already, but the graph of the batch is spoilt by the next run."""
    model = Custom(
        lambda m, ids: F.linear(m.e(ids).sum(1), m.e.weight), e=nn.Embedding(6, 4, max_norm=0.5)
    ).double()
    nn.init.constant_(model.e.weight, 0.1)
    ids, y = torch.randint(6, (5, 3)), torch.randint(6, (5,))
    expected = batch_of_one_fisher(model, (ids,), y, the_target)
    assert_equal_fishers(ewc.fisher_diagonal(model, [(ids, y)], kind="empirical"), expected)


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: m.a(x) + (x[:, :0] * m.g).sum(1, keepdim=True),
        lambda m, x: m.a(torch.cat([x * m.g, m.empty * 1.0], 1)),
    ],
    ids=["a dimension without entries", "an empty tensor that cat leaves out"],
)
def test_nothing_at_all_in_between(forward: Callable[..., Tensor]) -> None:
    torch.manual_seed(0)
    model = Custom(
        forward, a=nn.Linear(4, 3), g=nn.Parameter(normal(1)), empty=nn.Parameter(normal(0))
    ).double()
    x, y = normal(5, 4), torch.randint(3, (5,))
    expected = batch_of_one_fisher(model, (x,), y, the_target)
    actual = ewc.fisher_diagonal(model, [(x, y)], kind="empirical", parameters="!empty")
    assert_equal_fishers(actual, {name: expected[name] for name in actual})


def test_a_model_that_takes_no_batch_of_two() -> None:
    def forward(m: Custom, x: Tensor) -> Tensor:
        if len(x) == 2:
            raise ValueError("a batch of 2 has no third sample")
        return m.a(x)

    torch.manual_seed(0)
    model = Custom(forward, a=nn.Linear(4, 3)).double()
    x, y = normal(6, 4), torch.randint(3, (6,))
    expected = batch_of_one_fisher(model, (x,), y, the_target)
    assert_equal_fishers(ewc.fisher_diagonal(model, [(x, y)], kind="empirical"), expected)


def sorted_and_packed(m: Custom, x: Tensor, lengths: Tensor) -> Tensor:
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=True)
    return m.b(m.a(packed)[1][0][-1])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_packed_sequences_in_order_of_length(kind: type[nn.RNNBase]) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = kind(4, 5, batch_first=True)

        def forward(self, packed: object) -> tuple[object, tuple[Tensor]]:
            out, state = self.rnn(packed)
            return out, (state[0] if isinstance(state, tuple) else state,)

    torch.manual_seed(0)
    model = Custom(sorted_and_packed, a=Last(), b=nn.Linear(5, 3)).double()
    inputs = (torch.randn(6, 7, 4, dtype=torch.float64), torch.tensor([7, 6, 6, 4, 2, 1]))
    y = torch.randint(3, (6,))
    expected = batch_of_one_fisher(model, inputs, y, the_target)
    assert_equal_fishers(ewc.fisher_diagonal(model, [(inputs, y)], kind="empirical"), expected)


def in_double(m: Custom, x: Tensor) -> Tensor:
    return nn.functional.linear(x.double(), m.a.weight.double(), m.a.bias.double()).float()


def in_single(m: Custom, x: Tensor) -> Tensor:
    hidden = nn.functional.linear(x.float(), m.a.weight.float(), m.a.bias.float())
    return (hidden * m.g.float()).double()


def gain_on_complex(m: Custom, x: Tensor) -> Tensor:
    return (torch.fft.rfft(m.a(x), n=4) * m.g).abs()


@pytest.mark.parametrize(
    ("forward", "dtype"),
    [(in_double, torch.float32), (in_single, torch.float64), (gain_on_complex, torch.float64)],
)
def test_parameters_cast_to_another_type_inside(
    forward: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = Custom(forward, a=nn.Linear(4, 3), g=nn.Parameter(torch.randn(3))).to(dtype)
    x, y = torch.randn(6, 4, dtype=dtype), torch.randint(3, (6,))
    expected = batch_of_one_fisher(model, (x,), y, the_target)
    actual = ewc.fisher_diagonal(model, [(x, y)], kind="empirical")
    for name, values in expected.items():
        torch.testing.assert_close(actual[name], values, rtol=1e-5, atol=1e-9)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors(layout: torch.layout) -> None:
    def nested(rows: list[Tensor]) -> Tensor:
        return torch.nested.as_nested_tensor(rows, layout=layout)

    def forward(m: Custom, x: Tensor) -> Tensor:
        return m.b(torch.stack([row.tanh().sum(0) for row in m.a(x).unbind()]))

    torch.manual_seed(0)
    model = Custom(forward, a=nn.Linear(4, 5), b=nn.Linear(5, 3))
    rows, y = [torch.randn(length, 4) for length in (3, 2, 5, 1)], torch.randint(3, (4,))
    whole = ewc.fisher_diagonal(model, [(nested(rows), y)], kind="empirical")
    alone = [(row[None], y[n : n + 1]) for n, row in enumerate(rows)]
    expected = [batch_of_one_fisher(model, (x,), label, the_target) for x, label in alone]
    for name, values in whole.items():
        mean = sum(one[name] for one in expected) / 4
        torch.testing.assert_close(values, mean, rtol=1e-5, atol=1e-9)
