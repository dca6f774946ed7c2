"""The Fisher of every kind of module against the batch-of-one loop, and what it refuses."""

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.architectures import (
    CONVOLUTIONS,
    FAST,
    GENERAL,
    TRANSPOSED,
    Case,
    Custom,
    perceptron,
    pooled,
    table,
)  # fmt: skip
from support.reference import EXACT, assert_equal_fishers, batch_of_one_fisher, the_target
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ewc
from ewc.fisher.autograd.plan import Plan
from ewc.fisher.likelihood import cotangents


def in_float64(make: Callable[[], Case]) -> Case:
    torch.manual_seed(0)
    model, inputs = make()
    return model.double().eval(), tuple(x.double() if x.is_floating_point() else x for x in inputs)


def check_against_loop(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Empirical and exact, in one batch and in batches of two sizes."""
    with torch.no_grad():
        output = model(*inputs)
    targets = torch.randint(output.shape[-1], output.shape[:-1])
    expected = batch_of_one_fisher(model, inputs, targets, the_target)
    assert_equal_fishers(
        ewc.fisher_diagonal(model, [(inputs, targets)], kind="empirical"), expected
    )
    split = [(tuple(x[a:b] for x in inputs), targets[a:b]) for a, b in ((0, 2), (2, 3), (3, 99))]
    split = [batch for batch in split if len(batch[1])]
    assert_equal_fishers(ewc.fisher_diagonal(model, split, kind="empirical"), expected)
    expected = batch_of_one_fisher(model, inputs, None, EXACT["categorical"])
    assert_equal_fishers(ewc.fisher_diagonal(model, [(inputs,)]), expected)


@pytest.mark.parametrize("name", FAST)
def test_equals_the_loop_where_every_parameter_has_a_rule(name: str, plans: list[Plan]) -> None:
    model, inputs = in_float64(FAST[name])
    check_against_loop(model, inputs)
    assert plans[0].alone == []


@pytest.mark.parametrize("name", GENERAL)
def test_equals_the_loop_where_some_have_none(name: str, plans: list[Plan]) -> None:
    make, alone = GENERAL[name]
    model, inputs = in_float64(make)
    check_against_loop(model, inputs)
    assert set(plans[0].alone) == alone


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
def test_convolutions(rank: int, options: dict[str, object], plans: list[Plan]) -> None:
    layer = getattr(nn, f"Conv{rank}d")
    model, inputs = in_float64(
        lambda: (pooled(layer(4, 6, 3, **options), 6), table(3, 4, *[6] * rank))
    )
    check_against_loop(model, inputs)
    assert plans[0].alone == []


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("options", TRANSPOSED, ids=str)
def test_transposed_convolutions(rank: int, options: dict[str, object], plans: list[Plan]) -> None:
    layer = getattr(nn, f"ConvTranspose{rank}d")
    model, inputs = in_float64(
        lambda: (pooled(layer(4, 6, 3, **options), 6), table(3, 4, *[4] * rank))
    )
    check_against_loop(model, inputs)
    assert plans[0].alone == []


LAYERS = {
    "linear": lambda width, out: nn.Linear(width, out),
    "twice": lambda width, out: nn.Sequential(
        *[nn.Linear(width, width)] * 2, nn.Linear(width, out)
    ),
    "norm": lambda width, out: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, out)),
    "rms": lambda width, out: nn.Sequential(nn.RMSNorm(width), nn.Linear(width, out)),
    "prelu": lambda width, out: nn.Sequential(nn.PReLU(), nn.Linear(width, out)),
    "attention": lambda width, out: nn.Sequential(
        Custom(lambda m, x: m.a(x, x, x)[0], a=nn.MultiheadAttention(width, 1, batch_first=True)),
        nn.Linear(width, out),
    ),
    "convolution": lambda width, out: Custom(
        lambda m, x: m.c(x.transpose(1, 2)).transpose(1, 2), c=nn.Conv1d(width, out, 3, padding=1)
    ),
    "residual": lambda width, out: Custom(
        lambda m, x: m.b(x + m.a(x).tanh()), a=nn.Linear(width, width), b=nn.Linear(width, out)
    ),
    "bare": lambda width, out: Custom(
        lambda m, x: m.a(x * m.g + m.s),
        a=nn.Linear(width, out),
        g=nn.Parameter(torch.randn(width)),
        s=nn.Parameter(torch.randn(1, 1, width)),
    ),
    "recurrent": lambda width, out: Custom(
        lambda m, x: m.r(x)[0], r=nn.GRU(width, out, batch_first=True)
    ),
}


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    layers=st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=4),
    widths=st.lists(st.integers(2, 5), min_size=5, max_size=5),
    samples=st.integers(1, 5),
    length=st.integers(1, 4),
    kind=st.sampled_from(["exact", "empirical", "sampled"]),
    likelihood=st.sampled_from(["categorical", "bernoulli", "gaussian"]),
    seed=st.integers(0, 2**16),
)
def test_random_architectures_of_all_kinds_and_likelihoods(
    layers: list[str],
    widths: list[int],
    samples: int,
    length: int,
    kind: str,
    likelihood: str,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    parts = [LAYERS[name](widths[i], widths[i + 1]) for i, name in enumerate(layers)]
    model = nn.Sequential(*(m for part in parts for m in (part, nn.Tanh()))).double().eval()
    inputs = torch.randn(samples, length, widths[0], dtype=torch.float64)
    outputs = model(inputs).detach()
    if likelihood == "categorical":
        targets = torch.randint(outputs.shape[-1], outputs.shape[:-1])
    else:
        targets = torch.rand(outputs.shape, dtype=torch.float64)
    if kind == "sampled":
        check_sampled(model, inputs, outputs, likelihood, seed)
        return
    if kind == "exact" and likelihood == "bernoulli" and outputs[0].numel() > 6:
        return  # the reference walks through all patterns
    labels = the_target if kind == "empirical" else EXACT[likelihood]
    expected = batch_of_one_fisher(model, (inputs,), targets, labels, likelihood)
    actual = ewc.fisher_diagonal(model, [(inputs, targets)], kind=kind, likelihood=likelihood)
    assert_equal_fishers(actual, expected)


def check_sampled(
    model: nn.Module, inputs: Tensor, outputs: Tensor, likelihood: str, seed: int
) -> None:
    """`sampled` is the empirical Fisher of the labels drawn: recover these from the cotangent."""
    generator = torch.Generator().manual_seed(seed)
    (cotangent,) = cotangents(
        outputs, None, None, kind="sampled", likelihood=likelihood, generator=generator, where=""
    )
    if likelihood == "categorical":
        drawn = (cotangent + outputs.softmax(-1)).argmax(-1)
    else:
        drawn = cotangent + (outputs if likelihood == "gaussian" else outputs.sigmoid())
    expected = batch_of_one_fisher(model, (inputs,), drawn, the_target, likelihood)
    for batch in (len(inputs), 2):
        generator = torch.Generator().manual_seed(seed)
        actual = ewc.fisher_diagonal(
            model, inputs.split(batch), kind="sampled", likelihood=likelihood, generator=generator
        )
        assert_equal_fishers(actual, expected)


def test_a_callable_likelihood_is_the_per_sample_log_likelihood() -> None:
    model, (x,) = in_float64(lambda: (perceptron(nn.Tanh()), table(5, 8)))
    y = torch.randn(5, 3, dtype=torch.float64)
    actual = ewc.fisher_diagonal(
        model, [(x, y)], kind="empirical", likelihood=lambda out, t: -0.5 * ((out - t) ** 2).sum(1)
    )
    assert_equal_fishers(actual, batch_of_one_fisher(model, (x,), y, the_target, "gaussian"))


def test_a_callable_likelihood_must_give_one_value_a_sample() -> None:
    with pytest.raises(ValueError, match=r"one value a sample, shape \(5,\).*\(5, 3\)"):
        ewc.fisher_diagonal(
            nn.Linear(4, 3), [(torch.randn(5, 4), torch.randn(5, 3))], kind="empirical",
            likelihood=lambda out, t: (out - t) ** 2,
        )  # fmt: skip


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
            model, (x,), y, labels if kind == "empirical" else only_labelled
        )
        assert_equal_fishers(ewc.fisher_diagonal(model, [(x, y)], kind=kind), expected)


def only_labelled(output: Tensor, target: Tensor) -> list[tuple[float, Tensor]]:
    kept = target.reshape(-1) != -100
    return [(w, y) for w, y in EXACT["categorical"](output, target) if kept[y != -100].all()]


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
    assert plans[0].alone == []


def test_a_reentrant_checkpoint_is_refused() -> None:
    def forward(m: Custom, x: Tensor) -> Tensor:
        return m.b(checkpoint(m.a, x.requires_grad_(), use_reentrant=True))

    model = Custom(forward, a=nn.Linear(4, 5), b=nn.Linear(5, 3))
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        ewc.fisher_diagonal(model, [torch.randn(5, 4)])


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


def test_chunks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [FAST["linear on sequences"], FAST["tied embeddings, positions"], FAST["group norm"]]
    for make in cases:
        model, inputs = in_float64(make)
        with monkeypatch.context() as patch:
            whole = ewc.fisher_diagonal(model, [(inputs,)], kind="sampled")
            patch.setattr("ewc.fisher.autograd.rules.BUDGET", 1)
            assert_equal_fishers(ewc.fisher_diagonal(model, [(inputs,)], kind="sampled"), whole)


def test_small_batches_run_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x,) = in_float64(lambda: (perceptron(nn.Tanh()), table(40, 8)))
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    whole = ewc.fisher_diagonal(model, [x])
    sizes.clear()
    assert_equal_fishers(ewc.fisher_diagonal(model, x.split(1)), whole)
    assert sizes[0] == 1
    assert 39 in sizes
    monkeypatch.setattr("ewc.fisher.diagonal.JOINED_ELEMENTS", 0)
    sizes.clear()
    assert_equal_fishers(ewc.fisher_diagonal(model, x.split(20)), whole)
    assert max(sizes) == 20


def test_batches_that_differ_in_other_inputs_do_not_run_together() -> None:
    model = Custom(lambda m, x, scale: m.a(x) * float(scale[0]), a=nn.Linear(4, 3)).double()
    x, scales = torch.randn(3, 4, 4, dtype=torch.float64), np.array([[1.0, 0], [2, 0], [3, 0]])
    batches = [((one, scale),) for one, scale in zip(x, scales, strict=True)]
    each = [ewc.fisher_diagonal(model, [batch]) for batch in batches]
    mean = {name: sum(f[name] for f in each) / 3 for name in each[0]}
    assert_equal_fishers(ewc.fisher_diagonal(model, batches), mean)


def test_a_loader_may_fill_the_same_tensors_anew() -> None:
    model, (x,) = in_float64(lambda: (perceptron(nn.Tanh()), table(12, 8)))
    y = torch.randint(3, (12,))

    def reusing() -> Iterator[tuple[Tensor, Tensor]]:
        inputs, targets = x[:4].clone(), y[:4].clone()
        for start in (0, 4, 8):
            yield inputs.copy_(x[start : start + 4]), targets.copy_(y[start : start + 4])

    whole = ewc.fisher_diagonal(model, [(x, y)], kind="empirical")
    assert_equal_fishers(ewc.fisher_diagonal(model, reusing(), kind="empirical"), whole)


def test_batches_that_differ_in_shape_do_not_run_together() -> None:
    model, (x,) = in_float64(lambda: (perceptron(nn.Tanh()), table(12, 5, 8)))
    lengths = [x[:4], x[4:8, :3], x[8:, :3]]
    expected = [ewc.fisher_diagonal(model, [batch], positions="sum") for batch in lengths]
    mean = {name: sum(f[name] for f in expected) / 3 for name in expected[0]}
    assert_equal_fishers(ewc.fisher_diagonal(model, lengths, positions="sum"), mean)


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


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="2 classes or more"):
        ewc.fisher_diagonal(nn.Linear(4, 1), [X])


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


def test_labels_that_are_all_ignored_are_refused() -> None:
    with pytest.raises(ValueError, match="no position counts"):
        ewc.fisher_diagonal(nn.Linear(4, 3), [(X, Y - 100)])


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
