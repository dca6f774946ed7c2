"""What `fisher_diagonal` promises: its options, its scale, its types, and what it refuses."""

import warnings
from collections.abc import Iterator
from functools import partial

import pytest
import torch
from support.fisher import (
    EXACT,
    Custom,
    assert_equal_fishers,
    batch_of_one_fisher,
    in_float64,
    perceptron,
    table,
    the_target,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ewc
from ewc.distributed.ranks import Ranks
from ewc.fisher.passes import FisherSums


def test_is_not_the_square_of_the_mean_gradient() -> None:
    """What most libraries compute; a test that would pass with it is no test."""
    model, (x,) = in_float64(lambda: (perceptron(nn.Tanh()), table(5, 8)))
    y = torch.randint(3, (5,))
    loss = nn.functional.cross_entropy(model(x), y)
    wrong = torch.autograd.grad(loss, model[0].weight)[0] ** 2
    right = ewc.fisher_diagonal(model, [(x, y)], kind="empirical")["0.weight"]
    assert not torch.allclose(wrong, right, rtol=0.1)


def test_labels_of_minus_100_are_ignored() -> None:
    model, (x,) = in_float64(lambda: (perceptron(nn.Tanh()), table(4, 5, 8)))
    y = torch.randint(3, (4, 5))
    y[0, 2:] = y[1] = y[3, 0] = -100
    for kind, labels in (("empirical", the_target), ("exact", EXACT["categorical"])):
        expected = batch_of_one_fisher(
            model, (x,), y, labels if kind == "empirical" else only_labeled
        )
        assert_equal_fishers(ewc.fisher_diagonal(model, [(x, y)], kind=kind), expected)


def only_labeled(output: Tensor, target: Tensor) -> list[tuple[float, Tensor]]:
    kept = target.reshape(-1) != -100
    return [(w, y) for w, y in EXACT["categorical"](output, target) if kept[y != -100].all()]


def test_a_reentrant_checkpoint_is_refused() -> None:
    def forward(m: Custom, x: Tensor) -> Tensor:
        return m.b(checkpoint(m.a, x.requires_grad_(), use_reentrant=True))

    model = Custom(forward, a=nn.Linear(4, 5), b=nn.Linear(5, 3))
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        ewc.fisher_diagonal(model, [torch.randn(5, 4)])


def test_parameters_are_chosen_by_name_and_frozen_ones_left_out() -> None:
    model = perceptron(nn.Tanh())
    model[0].weight.requires_grad_(False)
    x = torch.randn(5, 8)
    assert set(ewc.fisher_diagonal(model, [x])) == {"0.bias", "2.weight", "2.bias"}
    assert set(ewc.fisher_diagonal(model, [x], parameters="!2.*")) == {"0.bias"}


def test_max_samples_takes_the_first_ones_and_warns_when_they_run_dry() -> None:
    model, (x,) = in_float64(lambda: (perceptron(nn.Tanh()), table(6, 8)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        some = ewc.fisher_diagonal(model, x.split(4), max_samples=5)
    assert_equal_fishers(some, ewc.fisher_diagonal(model, [x[:5]]))
    with pytest.warns(UserWarning, match="ended after 6 samples, before max_samples=7"):
        ewc.fisher_diagonal(model, x.split(4), max_samples=7)


def test_an_endless_loader_is_read_no_further_than_needed() -> None:
    reads = []

    def endless() -> object:
        while True:
            reads.append(1)
            yield torch.randn(4, 8)

    ewc.fisher_diagonal(perceptron(nn.Tanh()), endless(), max_samples=8)
    assert len(reads) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtypes_accumulate_in_at_least_float32(dtype: torch.dtype) -> None:
    model, (x,) = in_float64(lambda: (perceptron(nn.Tanh()), table(64, 8)))
    y = torch.randint(3, (64,))
    right = ewc.fisher_diagonal(model, [(x, y)], kind="empirical")
    model.to(dtype)
    fisher = ewc.fisher_diagonal(model, [(x.to(dtype), y)], kind="empirical")
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    for name, values in fisher.items():
        assert values.dtype == torch.promote_types(dtype, torch.float32)
        error = (values.double() - right[name]).norm() / right[name].norm()
        assert float(error) < tolerance


def test_small_bfloat16_gradients_do_not_vanish() -> None:
    model = nn.Linear(4, 3, dtype=torch.bfloat16)
    x = torch.full((4, 4), 2.0**-60, dtype=torch.bfloat16)
    fisher = ewc.fisher_diagonal(model, [x], kind="exact")
    assert bool((fisher["weight"] > 0).all())


def test_works_under_no_grad_and_refuses_inference_mode() -> None:
    model, (x,) = in_float64(lambda: (perceptron(nn.Tanh()), table(5, 8)))
    with torch.no_grad():
        quiet = ewc.fisher_diagonal(model, [x])
    assert_equal_fishers(quiet, ewc.fisher_diagonal(model, [x]))
    with torch.inference_mode(), pytest.raises(RuntimeError, match="inference_mode"):
        ewc.fisher_diagonal(model, [x])


def test_exact_is_refused_above_a_thousand_outputs() -> None:
    with pytest.raises(ValueError, match=r"refused above 1000.*1001.*'sampled'"):
        ewc.fisher_diagonal(nn.Linear(2, 1001), [torch.randn(2, 2)])
    with pytest.raises(ValueError, match="'sampled'"):
        ewc.fisher_diagonal(nn.Linear(2, 400), [torch.randn(2, 3, 2)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "emprical"}, "did you mean 'empirical'"),
        ({"likelihood": "gausian"}, "did you mean 'gaussian'"),
        ({"likelihood": lambda out, y: out.sum(1)}, "use kind='empirical'"),
        ({"max_samples": 0}, "max_samples must be at least 1, not 0"),
        ({"parameters": "wieght"}, "weight"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ewc.fisher_diagonal(nn.Linear(4, 3), [torch.randn(5, 4)], **options)


def with_nan(x: Tensor) -> Tensor:
    x[2, 1] = float("nan")
    return x


X, Y = torch.zeros(5, 4), torch.zeros(5, dtype=torch.long)


@pytest.mark.parametrize(
    ("batches", "options", "message"),
    [
        ([], {}, "batches is empty"),
        ([X[:0]], {}, "batch 0 is empty"),
        ([X, with_nan(X.clone())], {}, "outputs for batch 1 are NaN"),
        ([X] * 4 + [with_nan(X.clone())] + [X] * 3, {}, "outputs for batch 4 are NaN"),
        ([(X, Y + 3)], {"kind": "empirical"}, "labels must be 0 to 2.*batch 0 has 3"),
        ([(X, Y - 1)], {"kind": "empirical"}, "labels must be 0 to 2.*batch 0 has -1"),
        ([(X, Y[:4])], {"kind": "empirical"}, r"batch 0 has first dimensions \[5, 4\]"),
        ([(X, Y.float())], {"kind": "empirical"}, "must be integer labels"),
        ([X], {"kind": "empirical"}, "needs targets, but batch 0 has none"),
        ([(X, Y)], {"kind": "empirical", "likelihood": "gaussian"}, r"outputs' shape \(5, 3\)"),
        ([(X, torch.full((5, 3), 2.0))], {"kind": "empirical", "likelihood": "bernoulli"}, "0, 1"),
        (
            [(X, with_nan(X.clone())[:, :3])],
            {"kind": "empirical", "likelihood": "gaussian"},
            "finite",
        ),
        ([(X, X, Y)], {}, r"\(inputs, targets\) was expected"),
        ([(X, Y - 100)], {}, "no position counts"),
    ],
)
def test_batches_that_do_not_fit(
    batches: list[object], options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ewc.fisher_diagonal(nn.Linear(4, 3), batches, **options)


def test_a_tensor_is_not_a_list_of_batches() -> None:
    with pytest.raises(TypeError, match="wrap it in a list"):
        ewc.fisher_diagonal(nn.Linear(4, 3), X)


def test_a_detached_output_is_refused() -> None:
    model = Custom(lambda m, x: m.a(x).detach(), a=nn.Linear(4, 3))
    with pytest.raises(ValueError, match="does not depend on any trainable parameter"):
        ewc.fisher_diagonal(model, [X])


def test_the_scale_of_a_sequence_is_that_of_the_mean_over_its_tokens() -> None:
    """F does not grow with the length: it is the curvature of the loss that people train with."""
    torch.manual_seed(0)
    model = perceptron(nn.Tanh()).double()
    traces = {}
    for length in (8, 64):
        x = torch.randn(20, length, 8, dtype=torch.float64)
        for positions in ("mean", "sum"):
            fisher = ewc.fisher_diagonal(model, [x], kind="sampled", positions=positions)
            traces[length, positions] = sum(float(f.sum()) for f in fisher.values())
    assert traces[64, "mean"] == pytest.approx(traces[8, "mean"], rel=0.2)
    for length in (8, 64):
        assert traces[length, "sum"] == pytest.approx(length * traces[length, "mean"])


def test_the_mean_over_positions_is_the_curvature_of_the_mean_token_loss() -> None:
    """With a linear model in the logits, the exact Fisher is the diagonal of the Hessian."""
    torch.manual_seed(0)
    model = nn.Linear(3, 4).double()
    x, y = torch.randn(5, 6, 3, dtype=torch.float64), torch.randint(4, (5, 6))
    y[0, 3:] = y[2] = -100

    def loss(weight: Tensor, bias: Tensor) -> Tensor:
        logits = nn.functional.linear(x, weight.view(4, 3), bias)
        return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())

    weight, bias = model.weight.detach().flatten(), model.bias.detach()
    hessian = torch.autograd.functional.hessian(loss, (weight, bias))
    fisher = ewc.fisher_diagonal(model, [(x[:2], y[:2]), (x[2:], y[2:])])
    torch.testing.assert_close(fisher["weight"].flatten(), hessian[0][0].diagonal())
    torch.testing.assert_close(fisher["bias"], hessian[1][1].diagonal())


def test_parameters_without_a_shape_are_named() -> None:
    with pytest.raises(ValueError, match="'weight' has no shape yet"):
        ewc.fisher_diagonal(nn.LazyLinear(3), [torch.randn(5, 4)])


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.SyncBatchNorm])
def test_batch_norm_without_statistics_is_refused_by_name(norm: type[nn.Module]) -> None:
    inner = nn.Sequential(nn.Linear(4, 6), norm(6, track_running_stats=False))
    model = nn.Sequential(inner, nn.Linear(6, 3))
    memory = ewc.EWC(model, strength=1.0)

    def batches() -> Iterator[Tensor]:
        raise AssertionError("read although nothing can come of it")
        yield torch.randn(8, 4)

    kind = norm.__name__
    for compute in (memory.consolidate, partial(ewc.fisher_diagonal, model)):
        with pytest.raises(
            ValueError, match=rf"module '0\.1' is a {kind} without running stat.*use"
        ):
            compute(batches())
    with pytest.raises(ValueError, match="without running statistics"):
        ewc.importances.memory_aware_synapses(model, batches())
    assert memory.tasks == ()
    assert model.training


def test_instance_norm_is_no_batch_norm() -> None:
    norm = nn.InstanceNorm1d(6, affine=True)
    model = nn.Sequential(nn.Linear(5, 5), norm, nn.Flatten(), nn.Linear(30, 3))
    assert "1.weight" in ewc.fisher_diagonal(model, [torch.randn(8, 6, 5)])


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
@pytest.mark.parametrize("kind", ["exact", "empirical"])
def test_images_have_the_same_fisher_in_every_orientation(likelihood: str, kind: str) -> None:
    """All outputs of a sample are summed over, as if they lay in one row."""
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 3).double()
    x, y = torch.randn(4, 2, 5, 7, dtype=torch.float64), torch.rand(4, 3, 3, 5).double()
    found = []
    for turn in (
        lambda z: z.flatten(1),
        lambda z: z,
        lambda z: z.transpose(2, 3),
        lambda z: z.movedim(1, -1),
        lambda z: z.flatten(2),
    ):
        model = Custom(lambda m, x, turn=turn: turn(m.a(x)), a=layer)
        for positions in ("mean", "sum"):
            batches = [(x[:3], turn(y)[:3]), (x[3:], turn(y)[3:])]
            options = {"kind": kind, "likelihood": likelihood, "positions": positions}
            found.append(ewc.fisher_diagonal(model, batches, **options))
    for other in found[1:]:
        assert_equal_fishers(other, found[0])
    labels = the_target if kind == "empirical" else EXACT["gaussian"]
    if kind == "empirical" or likelihood == "gaussian":
        model = Custom(lambda m, x: m.a(x), a=layer)
        expected = batch_of_one_fisher(model, (x,), y, labels, likelihood)
        assert_equal_fishers(found[0], expected)


@pytest.mark.parametrize("dim", [-1, 1])
def test_a_callable_over_tokens_has_the_scale_of_the_built_in_likelihood(dim: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 5)).double()
    x, y = torch.randint(9, (6, 16)), torch.randint(5, (6, 16))
    y[1, 3:] = -100

    def log_likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(
            outputs.movedim(dim, 1), targets, reduction="none", ignore_index=-100
        )
        return -losses.sum(1)

    turned = Custom(lambda m, x: m.a(x).movedim(-1, dim), a=model)
    batches = list(zip(x.split(4), y.split(4), strict=True))
    for positions in ("mean", "sum"):
        options = {"kind": "empirical", "positions": positions}
        expected = ewc.fisher_diagonal(model, batches, **options)
        found = ewc.fisher_diagonal(turned, batches, likelihood=log_likelihood, **options)
        assert_equal_fishers(found, {f"a.{name}": f for name, f in expected.items()})


def sums_of(values: list[float]) -> FisherSums:
    sums = FisherSums({"w": torch.tensor(values)})
    sums.count(1, 3)
    sums.count(1, 1)
    return sums


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_mean_that_is_not_finite_is_refused(value):
    with pytest.raises(ValueError, match="the Fisher of 'w' is not finite"):
        sums_of([1.0, value]).mean(Ranks(), None, "mean")
