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
