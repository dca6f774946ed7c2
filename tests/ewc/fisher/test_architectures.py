"""A pass over batches equals the batch-of-one loop, for every kind of module and batch size."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fisher import (
    CONVOLUTIONS,
    EXACT,
    FAST,
    GENERAL,
    TRANSPOSED,
    Custom,
    assert_equal_fishers,
    batch_of_one_absolutes,
    batch_of_one_fisher,
    check_against_loop,
    in_float64,
    perceptron,
    pooled,
    table,
    the_target,
)
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import ewc
from ewc.fisher.likelihood import cotangents
from ewc.fisher.per_sample.plan import Plan
from ewc.importances import memory_aware_synapses


@pytest.mark.parametrize("name", FAST)
def test_equals_the_loop_where_every_parameter_has_a_rule(name: str, plans: list[Plan]) -> None:
    model, inputs = in_float64(FAST[name])
    check_against_loop(model, inputs)
    assert plans[0].one_by_one == []


@pytest.mark.parametrize("name", GENERAL)
def test_equals_the_loop_where_some_have_none(name: str, plans: list[Plan]) -> None:
    make, alone = GENERAL[name]
    model, inputs = in_float64(make)
    check_against_loop(model, inputs)
    assert set(plans[0].one_by_one) == alone


CALLS = [("Conv", 6, options) for options in CONVOLUTIONS]
CALLS += [("ConvTranspose", 4, options) for options in TRANSPOSED]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("call", CALLS, ids=str)
def test_convolutions(rank: int, call: tuple[str, int, dict[str, Any]], plans: list[Plan]) -> None:
    kind, size, options = call
    layer = getattr(nn, f"{kind}{rank}d")
    model, inputs = in_float64(
        lambda: (pooled(layer(4, 6, 3, **options), 6), table(3, 4, *[size] * rank))
    )
    check_against_loop(model, inputs)
    assert plans[0].one_by_one == []


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


def test_chunks_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [FAST["linear on sequences"], FAST["tied embeddings, positions"], FAST["group norm"]]
    for make in cases:
        model, inputs = in_float64(make)
        with monkeypatch.context() as patch:
            whole = ewc.fisher_diagonal(model, [(inputs,)], kind="sampled")
            patch.setattr("ewc.fisher.per_sample.rules.BUDGET", 1)
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
    monkeypatch.setattr("ewc.fisher.passes.JOINED_ELEMENTS", 0)
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


@pytest.mark.parametrize("batch_size", [1, 20])
def test_a_model_that_is_random_in_eval_mode(batch_size: int) -> None:
    """Its gradient is that of the output drawn, where w = 1 is right and where 0 is far off."""

    def forward(m: Custom, x: Tensor) -> Tensor:
        return m.w * dropout(x, 0.5)  # which is always on

    model = Custom(forward, w=nn.Parameter(torch.ones(1)))
    x = torch.ones(200, 30)
    torch.manual_seed(0)
    batches = list(zip(x.split(batch_size), (2 * x).split(batch_size), strict=True))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = ewc.fisher_diagonal(model, batches, kind="empirical", likelihood="gaussian")
    assert found["w"].item() == 0.0  # (2 − 2) · 2 or (2 − 0) · 0
    assert said
    assert all("random in eval mode" in str(one.message) for one in said)


def tagger(m: Custom, x: Tensor, lengths: Tensor) -> Tensor:
    """Outputs are cut to the longest sequence of the batch."""
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return m.head(pad_packed_sequence(m.rnn(packed)[0], batch_first=True)[0])


@pytest.mark.parametrize("size", [1, 2, 6])
def test_positions_are_those_of_each_sample_alone_if_samples_mix(size: int) -> None:
    torch.manual_seed(0)
    model = Custom(tagger, rnn=nn.GRU(4, 5, batch_first=True), head=nn.Linear(5, 3)).double()
    x, lengths = torch.randn(6, 7, 4).double(), torch.tensor([2, 1, 3, 2, 1, 5])
    expected = batch_of_one_fisher(model, (x, lengths), None, EXACT["categorical"])
    batches = [((a, b),) for a, b in zip(x.split(size), lengths.split(size), strict=True)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*depends on the other samples")
        assert_equal_fishers(ewc.fisher_diagonal(model, batches), expected)


def test_batches_that_must_be_sorted_are_not_joined() -> None:
    def forward(m: Custom, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True)  # raises if not sorted
        return m.head(m.rnn(packed)[1][-1])

    torch.manual_seed(0)
    model = Custom(forward, rnn=nn.GRU(4, 5, batch_first=True), head=nn.Linear(5, 3)).double()
    x, lengths = torch.randn(4, 3, 6, 4).double(), torch.tensor([6, 4, 1])
    y = torch.randint(3, (4, 3))
    batches = [((one, lengths), two) for one, two in zip(x, y, strict=True)]
    inputs = (x.flatten(0, 1), lengths.repeat(4))
    expected = batch_of_one_fisher(model, inputs, y.flatten(), the_target)
    assert_equal_fishers(ewc.fisher_diagonal(model, batches, kind="empirical"), expected)


def test_a_buffer_that_forward_writes_and_a_layer_reads() -> None:
    def forward(m: Custom, x: Tensor) -> Tensor:
        m.cache[: len(x)].copy_(x)
        return m.head(m.cache[: len(x)])

    model = Custom(forward, head=nn.Linear(8, 3)).double()
    model.register_buffer("cache", torch.zeros(32, 8, dtype=torch.float64))
    check_against_loop(model, (torch.randn(6, 8, dtype=torch.float64),))


@pytest.mark.parametrize("error", [AssertionError, IndexError, ValueError])
def test_a_model_that_takes_no_larger_batch_gets_none(error: type[Exception]) -> None:
    def forward(m: Custom, x: Tensor) -> Tensor:
        if len(x) > 4:
            raise error("at most four samples")
        return m.head(x)

    model = Custom(forward, head=nn.Linear(8, 3)).double()
    x, y = torch.randn(12, 8, dtype=torch.float64), torch.randint(3, (12,))
    batches = list(zip(x.split(3), y.split(3), strict=True))
    expected = batch_of_one_fisher(model, (x,), y, the_target)
    assert_equal_fishers(ewc.fisher_diagonal(model, batches, kind="empirical"), expected)


@pytest.mark.parametrize("name", [*FAST, *GENERAL])
def test_absolute_gradients_equal_the_loop_too(name: str, plans: list[Plan]) -> None:
    model, inputs = in_float64(FAST[name] if name in FAST else GENERAL[name][0])
    expected = batch_of_one_absolutes(model, inputs)
    assert_equal_fishers(memory_aware_synapses(model, [(inputs,)]), expected)
    if name in FAST:
        assert plans[0].one_by_one == []
        parts = [(tuple(x[a:b] for x in inputs),) for a, b in ((0, 2), (2, 3), (3, 99))]
        parts = [part for part in parts if len(part[0][0])]
        assert_equal_fishers(memory_aware_synapses(model, parts), expected)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_uses_of_a_tied_weight_may_cancel(plans: list[Plan]) -> None:
    model = Custom(lambda m, x: x @ m.w - (2 * x @ m.w) @ m.w, w=nn.Parameter(normal(3, 3)))
    x = normal(20, 3, seed=1)
    expected = batch_of_one_absolutes(model, (x,))
    assert_equal_fishers(memory_aware_synapses(model, [x]), expected)
    assert list(plans[0].multi_use) == ["w"]
