"""The Kronecker factors equal slow loops, one sample, label and position at a time, in float64."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.fisher import (
    CONVOLUTIONS,
    EXACT,
    FAST,
    GENERAL,
    TRANSPOSED,
    Case,
    Custom,
    assert_equal_fishers,
    batch_of_one_fisher,
    in_float64,
    log_probability,
    perceptron,
    pooled,
    table,
    the_target,
    tokens,
)
from support.kronecker import assert_equal_factors, counted, slow_factors
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

import ewc
from ewc.fisher import kronecker

ALL = FAST | {name: make for name, (make, _) in GENERAL.items()}
# Parameters that have no factors, by case; all others have some, or are biases that belong to one.
DIAGONAL = {
    "embedding": {"0.weight"},
    "embedding with padding": {"0.weight"},
    "tied embeddings, positions": {"words.weight", "places.weight", "norm.weight", "norm.bias"},
    "layer norm": {"1.weight", "1.bias"},
    "layer norm over two dimensions": {"0.weight", "0.bias"},
    "rms norm": {"1.weight"},
    "group norm": {"1.weight", "1.bias"},
    "batch norm": {"1.weight", "1.bias"},
    "batch norm of a table": {"1.weight", "1.bias"},
    # The projections of different inputs take parts of one matrix.
    "attention": {"heads.in_proj_weight", "heads.in_proj_bias"},
    "attention, samples in the middle": {"heads.in_proj_weight", "heads.in_proj_bias"},
    "cross attention": {"heads.in_proj_weight", "heads.in_proj_bias"},
    "attention with other widths": {"heads.in_proj_bias"},
    "transformer encoder": {f"0.layers.{n}.norm{k}.{p}" for n in (0, 1) for k in (1, 2)
                            for p in ("weight", "bias")},
    "bare parameters of a vision transformer": {"token", "places", "gain", "shift"},
    "an unused parameter": {"b.weight", "b.bias"},
    "weight norm": {"0.bias", *(f"0.parametrizations.weight.original{n}" for n in (0, 1))},
    "spectral norm": {"0.bias", "0.parametrizations.weight.original"},
    "bilinear": {"a.weight", "a.bias"},
    "prelu": {"1.weight"},
    "embedding bag": {"0.weight"},
    "embedding scaled by frequency": {"0.weight"},
    "shared lookup scaled by frequency": {"a.weight"},
    "sparse embedding": {"0.weight"},
    "attention with a bias for keys": {
        "heads.in_proj_weight", "heads.in_proj_bias", "heads.bias_k", "heads.bias_v",
    },
    "a weight copied in another order": {"p", "w"},
    "a bare parameter scaled before use": {"p"},
}  # fmt: skip


def check_against_loops(
    model: nn.Module, inputs: tuple[Tensor, ...], without: set[str] | None = None
) -> ewc.KroneckerFisher:
    """Empirical in one batch, and exact in batches of 2, 1 and the rest."""
    with torch.no_grad():
        output = model(*inputs)
    targets = torch.randint(output.shape[-1], output.shape[:-1])
    together = [(inputs, targets)]
    cuts = [(0, 2), (2, 3), (3, 99)]
    parts = [(tuple(x[a:b] for x in inputs), targets[a:b]) for a, b in cuts]
    parts = [part for part in parts if len(part[1])]
    for kind, labels, batches in (
        ("empirical", the_target, together),
        ("exact", EXACT["categorical"], parts),
    ):
        found = ewc.fisher_kronecker(model, batches, kind=kind)
        assert_equal_factors(
            found, slow_factors(model, inputs, targets, labels), counted(None, output)
        )
        loop = batch_of_one_fisher(model, inputs, targets, labels)
        if found.diagonal:
            assert_equal_fishers(found.diagonal, {name: loop[name] for name in found.diagonal})
        in_factors = {*found.factors, *(own.bias for own in found.factors.values())} - {None}
        assert in_factors | found.diagonal.keys() == dict(model.named_parameters()).keys()
        assert not in_factors & found.diagonal.keys()
        if without is not None:
            assert found.diagonal.keys() == without
    return found


@pytest.mark.parametrize("name", ALL)
def test_factors_equal_the_loops_for_every_layer(name: str) -> None:
    check_against_loops(*in_float64(ALL[name]), DIAGONAL.get(name, set()))


@pytest.mark.parametrize("options", CONVOLUTIONS)
@pytest.mark.parametrize("dims", [1, 2])
def test_factors_of_convolutions_equal_the_loops(dims: int, options: dict[str, Any]) -> None:
    conv = (nn.Conv1d, nn.Conv2d)[dims - 1]
    case = lambda: (pooled(conv(4, 2, 3, **options), 2), table(3, 4, *[5, 7][:dims]))  # noqa: E731
    grouped = options.get("groups", 1) > 1
    check_against_loops(*in_float64(case), {"0.weight", "0.bias"} if grouped else set())


def test_a_kernel_that_is_not_square_has_its_inputs_in_the_order_of_the_weight() -> None:
    def case() -> Case:
        conv = nn.Conv2d(3, 4, (2, 3), stride=(1, 2), padding=(1, 0), dilation=(2, 1))
        return pooled(conv, 4), table(3, 3, 5, 6)

    found = check_against_loops(*in_float64(case), set())
    assert found.factors["0.weight"].inputs.shape == (3 * 2 * 3 + 1, 3 * 2 * 3 + 1)


def test_factors_of_a_volume_equal_the_loops() -> None:
    check_against_loops(
        *in_float64(lambda: (pooled(nn.Conv3d(2, 2, 2, padding=1), 2), table(2, 2, 2, 3, 2))), set()
    )


@pytest.mark.parametrize("options", TRANSPOSED)
def test_transposed_convolutions_have_their_diagonal(options: dict[str, Any]) -> None:
    check_against_loops(
        *in_float64(lambda: (pooled(nn.ConvTranspose1d(4, 2, 3, **options), 2), table(3, 4, 5))),
        {"0.weight", "0.bias"},
    )


def test_the_layer_of_gpt_2_has_its_inputs_first() -> None:
    def case() -> Case:
        return nn.Sequential(Conv1D(6, 4), nn.Tanh(), nn.Linear(6, 3)), table(3, 2, 4)

    found = check_against_loops(*in_float64(case), set())
    assert found.factors["0.weight"].inputs_first
    assert not found.factors["2.weight"].inputs_first
    assert found.factors["0.weight"].inputs.shape == (5, 5)
    assert found.factors["0.weight"].outputs.shape == (6, 6)
    assert found.diagonals()["0.weight"].shape == (4, 6)


@pytest.mark.parametrize("batch_first", [True, False])
def test_self_attention_has_factors_of_all_its_projections(batch_first: bool) -> None:
    def forward(m: Custom, x: Tensor) -> Tensor:
        x = x if batch_first else x.transpose(0, 1)
        mixed = m.heads(x, x, x)[0]
        return m.head(mixed.mean(1 if batch_first else 0))

    def case() -> Case:
        heads = nn.MultiheadAttention(4, 2, batch_first=batch_first)
        return Custom(forward, heads=heads, head=nn.Linear(4, 3)), table(3, 2, 4)

    found = check_against_loops(*in_float64(case), set())
    assert found.factors["heads.in_proj_weight"].bias == "heads.in_proj_bias"


def test_a_weight_used_as_it_is_and_transposed_has_its_diagonal() -> None:
    def case() -> Case:
        def forward(m: Custom, x: Tensor) -> Tensor:
            return m.head(F.linear(F.linear(x, m.w).tanh(), m.w.t()))

        parts = {"w": nn.Parameter(torch.randn(4, 4)), "head": nn.Linear(4, 3)}
        return Custom(forward, **parts), table(4, 4)

    check_against_loops(*in_float64(case), {"w"})


def test_a_bias_that_is_added_elsewhere_too_has_its_diagonal() -> None:
    def case() -> Case:
        def forward(m: Custom, x: Tensor) -> Tensor:
            return m.head(m.a(x).tanh() + m.a.bias)

        return Custom(forward, a=nn.Linear(4, 4), head=nn.Linear(4, 3)), table(4, 4)

    found = check_against_loops(*in_float64(case), {"a.bias"})
    assert found.factors["a.weight"].bias is None


def test_a_bias_that_two_layers_share_has_its_diagonal() -> None:
    def case() -> Case:
        def forward(m: Custom, x: Tensor) -> Tensor:
            return m.b(F.linear(F.linear(x, m.v, m.shift).tanh(), m.w, m.shift))

        parts = {n: nn.Parameter(torch.randn(4, 4)) for n in "vw"}
        parts["shift"] = nn.Parameter(torch.randn(4))
        return Custom(forward, b=nn.Linear(4, 3), **parts), table(4, 4)

    check_against_loops(*in_float64(case), {"shift"})


def test_a_tied_head_has_its_diagonal() -> None:
    def case() -> Case:
        def forward(m: Custom, ids: Tensor) -> Tensor:
            return F.linear(m.middle(m.words(ids)), m.words.weight)

        return Custom(forward, words=nn.Embedding(5, 4), middle=nn.Linear(4, 4)), tokens(3, 3, 5)

    check_against_loops(*in_float64(case), {"words.weight"})


def test_samples_that_mix_are_run_alone() -> None:
    """The output of the batch differs from those of its samples, of which the Fisher is."""

    def case() -> Case:
        def forward(m: Custom, x: Tensor) -> Tensor:
            hidden = m.a(x)
            return m.b((hidden - hidden.mean(0)).tanh())

        return Custom(forward, a=nn.Linear(4, 5), b=nn.Linear(5, 3)), table(4, 4)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the model's output for a sample depends")
        check_against_loops(*in_float64(case))


def test_batches_of_one_give_the_same_factors() -> None:
    model, inputs = in_float64(FAST["linear on sequences"])
    alone = [(x[None], torch.zeros(1, 4, dtype=torch.long)) for x in inputs[0]]
    one = ewc.fisher_kronecker(model, alone)
    together = ewc.fisher_kronecker(model, [inputs])
    assert one.factors.keys() == together.factors.keys()
    for name, own in one.factors.items():
        assert own.bias == together.factors[name].bias
        torch.testing.assert_close(own.inputs, together.factors[name].inputs)
        torch.testing.assert_close(own.outputs, together.factors[name].outputs)


def test_a_gradient_that_a_hook_changes_is_not_taken_for_a_product() -> None:
    def case() -> Case:
        def forward(m: Custom, x: Tensor) -> Tensor:
            weight = m.w.view(4, 4)
            weight.register_hook(lambda grad: 3 * grad)
            return m.head(F.linear(x, weight).tanh())

        parts = {"w": nn.Parameter(torch.randn(4, 4)), "head": nn.Linear(4, 3)}
        return Custom(forward, **parts), table(5, 4)

    model, inputs = in_float64(case)
    check_against_loops(model, inputs, {"w"})
    alone = ewc.fisher_kronecker(model, [(x[None],) for x in inputs[0]])
    loop = batch_of_one_fisher(model, inputs, None, EXACT["categorical"])
    assert_equal_fishers(alone.diagonal, {"w": loop["w"]})


LIKELIHOODS = ["categorical", "gaussian", "bernoulli"]


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_the_exact_factors_sum_over_every_label(likelihood: str) -> None:
    model, inputs = in_float64(lambda: (perceptron(nn.Tanh()), table(4, 8)))
    found = ewc.fisher_kronecker(model, [inputs], likelihood=likelihood)
    slow = slow_factors(model, inputs, None, EXACT[likelihood], likelihood)
    assert_equal_factors(found, slow, 4)


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_the_empirical_factors_take_the_targets_of_every_likelihood(likelihood: str) -> None:
    model, inputs = in_float64(lambda: (perceptron(nn.Tanh()), table(4, 8)))
    targets = torch.rand(4, 3, dtype=torch.float64)
    found = ewc.fisher_kronecker(
        model, [(inputs[0], targets)], likelihood=likelihood, kind="empirical"
    )
    assert_equal_factors(found, slow_factors(model, inputs, targets, the_target, likelihood), 4)


def test_sampled_labels_of_a_sure_model_are_its_own() -> None:
    model, inputs = in_float64(lambda: (perceptron(nn.Tanh()), table(6, 8)))
    with torch.no_grad():
        model[2].bias.copy_(torch.tensor([0.0, 12.0, 0.0]))
        model[2].weight.mul_(0.1)
    sampled = ewc.fisher_kronecker(model, [inputs], kind="sampled")
    slow = slow_factors(model, inputs, torch.ones(6, dtype=torch.long), the_target)
    assert_equal_factors(sampled, slow, 6, tolerance=1e-6)


def test_sampled_factors_are_the_exact_ones_on_average_and_follow_the_generator() -> None:
    model, inputs = in_float64(lambda: (perceptron(nn.Tanh()), table(5, 8)))
    many = [(inputs[0].repeat(400, 1),)]
    drawn = [
        ewc.fisher_kronecker(
            model, many, kind="sampled", generator=torch.Generator().manual_seed(seed)
        )
        for seed in (0, 0, 1)
    ]
    exact = ewc.fisher_kronecker(model, many)
    for name, own in exact.factors.items():
        first, again, other = (one.factors[name].outputs for one in drawn)
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        torch.testing.assert_close(drawn[0].factors[name].inputs, own.inputs)
        assert float((first - own.outputs).norm() / own.outputs.norm()) < 0.1


@pytest.mark.parametrize("positions", ["mean", "sum"])
def test_labels_that_do_not_count_give_no_gradient_and_are_not_counted(positions: str) -> None:
    model, inputs = in_float64(FAST["linear on sequences"])
    targets = torch.tensor([[0, -100, 2, 1]] * 4 + [[-100, -100, 1, -100]])
    batches = [(inputs[0][:2], targets[:2]), (inputs[0][2:], targets[2:])]
    for kind, labels in (("empirical", the_target), ("exact", labelled_classes)):
        found = ewc.fisher_kronecker(model, batches, kind=kind, positions=positions)
        slow = slow_factors(model, inputs, targets, labels)
        assert_equal_factors(found, slow, 13 if positions == "mean" else 5)
        assert all(own.positions == 4 for own in found.factors.values())


def labelled_classes(output: Tensor, target: Tensor) -> Any:
    """Every class of the positions that have a label."""
    for weight, label in EXACT["categorical"](output, target):
        if int(target.reshape(-1)[label != -100]) != -100:
            yield weight, label


def test_only_so_many_samples_are_used() -> None:
    model, inputs = in_float64(lambda: (perceptron(nn.Tanh()), table(7, 8)))
    batches = [(x,) for x in inputs[0].split(3)]
    found = ewc.fisher_kronecker(model, batches, max_samples=4)
    assert_equal_factors(
        found, slow_factors(model, (inputs[0][:4],), None, EXACT["categorical"]), 4
    )


def test_a_layer_without_its_bias_or_its_weight() -> None:
    model, inputs = in_float64(lambda: (perceptron(nn.Tanh()), table(4, 8)))
    slow = slow_factors(model, inputs, None, EXACT["categorical"])
    weights = ewc.fisher_kronecker(model, [inputs], parameters="*.weight")
    assert [own.bias for own in weights.factors.values()] == [None, None]
    assert_equal_factors(weights, slow, 4)
    biases = ewc.fisher_kronecker(model, [inputs], parameters="*.bias")
    assert not biases.factors
    expected = ewc.fisher_diagonal(model, [inputs], parameters="*.bias")
    assert_equal_fishers(biases.diagonal, expected)


def test_frozen_layers_are_left_out() -> None:
    model, inputs = in_float64(lambda: (perceptron(nn.Tanh()), table(4, 8)))
    model[0].requires_grad_(False)
    found = ewc.fisher_kronecker(model, [inputs])
    assert list(found.factors) == ["2.weight"]
    assert not found.diagonal


def test_the_largest_layers_have_their_diagonal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kronecker, "LARGEST", 7)
    model, inputs = in_float64(lambda: (perceptron(nn.Tanh()), table(4, 8)))  # 9 and 7 inputs
    found = ewc.fisher_kronecker(model, [inputs])
    assert list(found.factors) == ["2.weight"]
    expected = ewc.fisher_diagonal(model, [inputs])
    assert_equal_fishers(found.diagonal, {n: expected[n] for n in ("0.weight", "0.bias")})


def test_the_diagonal_of_the_factors_has_the_shapes_and_the_trace() -> None:
    model, inputs = in_float64(lambda: (nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)),
                                        table(5, 4)))  # fmt: skip
    found = ewc.fisher_kronecker(model, [inputs])
    diagonals = found.diagonals()
    for name, own in found.factors.items():
        block = own.block().diagonal().reshape(len(own.outputs), len(own.inputs))
        assert own.bias is not None
        torch.testing.assert_close(diagonals[name], block[:, :-1])
        torch.testing.assert_close(diagonals[own.bias], block[:, -1])
        assert own.trace() == pytest.approx(float(block.sum()))


def test_the_model_is_left_as_it_was() -> None:
    model, inputs = in_float64(FAST["batch norm"])
    model.train()
    model(*inputs).sum().backward()
    before = {name: p.grad.clone() for name, p in model.named_parameters()}
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    state = torch.get_rng_state()
    ewc.fisher_kronecker(model, [inputs], kind="sampled")
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p.grad, before[name]) for name, p in model.named_parameters())
    assert all(torch.equal(b, buffers[name]) for name, b in model.named_buffers())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_factors_of_other_dtypes_are_float32(dtype: torch.dtype) -> None:
    model, inputs = in_float64(lambda: (perceptron(nn.Tanh()), table(5, 8)))
    expected = ewc.fisher_kronecker(model, [inputs])
    found = ewc.fisher_kronecker(model.to(dtype), [(inputs[0].to(dtype),)])
    for name, own in found.factors.items():
        assert own.inputs.dtype == own.outputs.dtype == torch.float32
        close = {"rtol": 0.1, "atol": 0.05} if dtype == torch.bfloat16 else {}
        torch.testing.assert_close(own.inputs, expected.factors[name].inputs.float(), **close)
        torch.testing.assert_close(own.outputs, expected.factors[name].outputs.float(), **close)


class Fickle(nn.Module):
    """Uses its weight in one way for odd numbers of positions, and in another for even ones."""

    def __init__(self, other: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 3))
        self.other = other

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.w) if x.shape[1] % 2 else self.other(x, self.w)


@pytest.mark.parametrize(
    "other",
    [
        lambda x, w: x * w.sum(0),  # by no rule
        lambda x, w: F.linear(x, w.t()),  # by a rule, of the transposed weight
        lambda x, w: F.linear(x, w[:2]).repeat(1, 1, 2)[..., :3],  # of a part of it
    ],
)
@pytest.mark.parametrize("samples", [1, 2])
def test_a_later_batch_that_uses_a_weight_in_another_way_is_refused(
    other: Callable[[Tensor, Tensor], Tensor], samples: int
) -> None:
    torch.manual_seed(0)
    model = Fickle(other).double()
    batches = [torch.randn(samples, length, 3).double() for length in (1, 2)]
    with pytest.raises(ValueError, match=r"'w'.*batch 1"):
        ewc.fisher_kronecker(model, batches)
    assert all(p.grad is None for p in model.parameters())
    assert "w" in ewc.fisher_kronecker(model, batches[:1]).factors


class FickleBias(nn.Module):
    """Adds its bias to the products of its weight, and in batches of even lengths otherwise."""

    def __init__(self, other: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3, bias=False)
        self.b = nn.Parameter(torch.randn(3))
        self.other = other

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y + self.b if x.shape[1] % 2 else self.other(y, self.b)


@pytest.mark.parametrize(
    "other",
    [
        lambda y, b: torch.add(y, b, alpha=2),
        lambda y, b: y.relu() + b,
        lambda y, b: (y + b) * b,
        lambda y, b: y,
    ],
)
@pytest.mark.parametrize("samples", [1, 2])
def test_a_later_batch_that_uses_a_bias_in_another_way_is_refused(
    other: Callable[[Tensor, Tensor], Tensor], samples: int
) -> None:
    torch.manual_seed(0)
    model = FickleBias(other).double()
    batches = [torch.randn(samples, length, 3).double() for length in (1, 2)]
    with pytest.raises(ValueError, match=r"'b' is the bias of 'linear.weight'.*batch 1"):
        ewc.fisher_kronecker(model, batches)
    assert ewc.fisher_kronecker(model, batches[:1]).factors["linear.weight"].bias == "b"


def test_numbers_that_overflow_are_told_with_the_name_of_the_weight() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=re.escape("the Fisher of 'weight' is not finite")):
        ewc.fisher_kronecker(model, [torch.full((2, 2), 1e30)])


def test_no_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="batches is empty"):
        ewc.fisher_kronecker(nn.Linear(2, 2), [])


# The factors beside the exact block of the Fisher.


def exact_block(model: nn.Module, inputs: tuple[Tensor, ...], likelihood: str, name: str) -> Tensor:
    """E[vec(∂log p) vec(∂log p)ᵀ] of a layer, its rows (outputs, inputs) with the bias last."""
    weight, bias = model.get_parameter(name), model.get_parameter(name.replace("weight", "bias"))
    total, count = 0.0, 0
    for n in range(len(inputs[0])):
        output = model(*(x[n : n + 1] for x in inputs))
        count += counted(None, output, likelihood)
        for share, label in EXACT[likelihood](output.detach(), None):
            value = log_probability(output, likelihood, label)
            grads = torch.autograd.grad(value, (weight, bias), retain_graph=True)
            joined = torch.cat([grads[0].flatten(1), grads[1].unsqueeze(1)], 1).flatten()
            total = total + share * torch.outer(joined, joined)
    return total / count


def relative_errors(
    model: nn.Module, inputs: tuple[Tensor, ...], likelihood: str, name: str
) -> tuple[float, float]:
    """The error of G ⊗ A, and that of the exact diagonal, in units of the norm of the block."""
    block = exact_block(model, inputs, likelihood, name)
    own = ewc.fisher_kronecker(model, [inputs], likelihood=likelihood).factors[name]
    diagonal = block.diagonal().diag()
    return tuple(float((one - block).norm() / block.norm()) for one in (own.block(), diagonal))


def test_linear_regression_has_exactly_these_factors() -> None:
    """The gradients at the outputs do not depend on the inputs: F = I ⊗ E[a aᵀ]."""
    model, inputs = in_float64(lambda: (nn.Linear(5, 3), table(12, 5)))
    block = exact_block(model, inputs, "gaussian", "weight")
    own = ewc.fisher_kronecker(model, [inputs], likelihood="gaussian").factors["weight"]
    torch.testing.assert_close(own.block(), block, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(own.outputs, torch.eye(3, dtype=torch.float64))
    ones = torch.cat([inputs[0], torch.ones(12, 1)], 1)
    torch.testing.assert_close(own.inputs, ones.t() @ ones / 12)


def test_a_single_sample_and_the_last_layer_of_a_regression_are_exact() -> None:
    model, inputs = in_float64(lambda: (perceptron(nn.Tanh()), table(9, 8)))
    assert relative_errors(model, inputs, "gaussian", "2.weight")[0] < 1e-12
    for likelihood in LIKELIHOODS:
        for name in ("0.weight", "2.weight"):
            assert relative_errors(model, (inputs[0][:1],), likelihood, name)[0] < 1e-12


# Relative errors of (G ⊗ A, the exact diagonal), measured, to two digits.
ERRORS = {
    ("categorical", "0.weight"): (0.23, 0.72),
    ("categorical", "2.weight"): (0.10, 0.71),
    ("gaussian", "0.weight"): (0.21, 0.70),
}


@pytest.mark.parametrize(("likelihood", "name"), ERRORS)
def test_the_factors_of_small_networks_are_nearer_to_the_block_than_its_diagonal(
    likelihood: str, name: str
) -> None:
    model, inputs = in_float64(lambda: (perceptron(nn.Tanh()), table(200, 8)))
    found = relative_errors(model, inputs, likelihood, name)
    assert found == pytest.approx(ERRORS[likelihood, name], abs=0.006)
    assert found[0] < found[1] / 2
