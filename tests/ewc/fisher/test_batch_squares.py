"""The gradients by the rules are those of autograd, also where no graph shows a difference."""

from collections.abc import Callable

import pytest
import torch
from support.architectures import Custom
from support.reference import EXACT, assert_equal_fishers, batch_of_one_fisher, the_target
from torch import Tensor, nn
from torch.nn import functional as F

import ewc


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


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


def test_batch_norm_with_a_spatial_dimension_of_one() -> None:
    """PyTorch's backward is wrong there; one dimension less is right."""

    def forward(m: Custom, x: Tensor) -> Tensor:
        h = m.a(x).transpose(1, 2)
        h = m.n(h.unsqueeze(-1)).squeeze(-1) if isinstance(m.n, nn.BatchNorm2d) else m.n(h)
        return m.b(h.transpose(1, 2)).mean(1)

    torch.manual_seed(0)
    parts = {"a": nn.Linear(4, 6), "b": nn.Linear(6, 3)}
    right = Custom(forward, n=nn.BatchNorm1d(6), **parts).double()
    right.n(normal(30, 6, 4) * 2 + 1)
    model = Custom(forward, n=nn.BatchNorm2d(6), **parts).double()
    model.load_state_dict(right.state_dict())
    x, y = normal(6, 5, 4), torch.randint(3, (6,))
    expected = batch_of_one_fisher(right.eval(), (x,), y, the_target)
    actual = ewc.fisher_diagonal(model, [(x, y)], kind="empirical")
    assert_equal_fishers({name: actual[name] for name in expected}, expected)


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


@pytest.mark.parametrize(
    ("likelihood", "message"),
    [
        (lambda o, t: -F.cross_entropy(o, t, reduction="none") / len(o), "treat samples apart"),
        (lambda o, t: (o.log_softmax(0)).sum(1), "treat samples apart"),
    ],
)
def test_a_callable_likelihood_that_mixes_samples(
    likelihood: Callable[..., Tensor], message: str
) -> None:
    batches = [(torch.randn(5, 4), torch.randint(3, (5,)))]
    with pytest.raises(ValueError, match=message):
        ewc.fisher_diagonal(nn.Linear(4, 3), batches, kind="empirical", likelihood=likelihood)


def test_a_callable_likelihood_with_a_parameter_of_its_own() -> None:
    scale = nn.Parameter(torch.ones(()))
    with pytest.raises(ValueError, match="depend on its arguments alone"):
        ewc.fisher_diagonal(
            nn.Linear(4, 3), [(torch.randn(5, 4), torch.randn(5, 3))], kind="empirical",
            likelihood=lambda o, t: -((o - t) ** 2).sum(1) * scale,
        )  # fmt: skip


def test_parameters_without_a_shape_are_named() -> None:
    with pytest.raises(ValueError, match="'weight' has no shape yet"):
        ewc.fisher_diagonal(nn.LazyLinear(3), [torch.randn(5, 4)])
