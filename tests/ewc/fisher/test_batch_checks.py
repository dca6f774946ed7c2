"""Batches whose samples mix, or whose rows go where the data says, are found and done right."""

import warnings
from collections.abc import Callable

import pytest
import torch
from support.architectures import Custom, perceptron, table
from support.fisher_cases import check_against_loop, in_float64
from support.reference import EXACT, assert_equal_fishers, batch_of_one_fisher, the_target
from torch import Tensor, nn

import ewc
from ewc.fisher.autograd.plan import Plan
from ewc.fisher.batch_checks import BatchChecks
from ewc.fisher.batches import FisherBatch
from ewc.fisher.model_run import ModelRun


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


def test_a_later_batch_that_mixes_samples_is_found_out() -> None:
    shrink = Custom(lambda m, x: x / x.abs().max().clamp(min=9))
    model, (x,) = in_float64(lambda: (perceptron(nn.Tanh()), table(12, 8)))
    model = nn.Sequential(shrink, model)
    x[8, 0] = 100
    y = torch.randint(3, (12,))
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


def checked(model: nn.Module, x: Tensor) -> Plan | None:
    run = ModelRun(model, dict(model.named_parameters()))
    batch = FisherBatch((x,), {}, None, None, len(x), "batch 0")
    output = run.outputs(batch)
    return BatchChecks(run).plan(batch, output, run.graph(output))


def test_a_plan_names_the_parameters_that_have_a_rule() -> None:
    plan = checked(nn.Sequential(nn.Linear(4, 3), nn.PReLU(3), nn.Linear(3, 3)), torch.randn(5, 4))
    assert plan is not None
    assert set(plan.single_use) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert plan.one_by_one == ["1.weight"]


def test_a_batch_whose_samples_mix_has_no_plan() -> None:
    model = Custom(lambda m, x: m.a(x - x.mean(0)), a=nn.Linear(4, 3))
    with pytest.warns(ewc.EWCWarning, match="depends on the other samples") as caught:
        assert checked(model, torch.randn(5, 4)) is None
    assert caught[0].filename == __file__


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
