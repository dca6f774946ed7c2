"""Likelihoods: cotangents, drawn labels, the user's own functions, and what contradicts them."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.fisher import (
    Custom,
    assert_equal_fishers,
    batch_of_one_fisher,
    in_float64,
    perceptron,
    table,
    the_target,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import log_softmax

import ewc
from ewc.fisher.likelihood import (
    BLOCK,
    cotangents,
    count_positions,
    draw_classes,
    draw_normal,
    draw_uniform,
)


def test_exact_cotangents_are_a_root_of_the_expectation() -> None:
    """Σ_k v_k v_kᵀ = diag(p) − ppᵀ, one backward pass less than there are classes."""
    logits = torch.randn(3, 4, dtype=torch.float64)
    vectors = torch.stack(
        list(
            cotangents(
                logits, None, None, kind="exact", likelihood="categorical", generator=None, where=""
            )
        )
    )
    assert len(vectors) == 3
    p = logits.softmax(-1)
    expected = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    torch.testing.assert_close(torch.einsum("kni,knj->nij", vectors, vectors), expected)


def test_positions_that_count() -> None:
    logits, labels = torch.randn(2, 3, 4), torch.tensor([[1, -100, 2], [-100, -100, 0]])
    assert count_positions(logits, labels, None, "categorical") == 3
    assert count_positions(logits, None, None, "categorical") == 6
    assert count_positions(logits, None, labels > 0, "categorical") == 2
    for shape in ((2,), (2, 5), (2, 3, 5), (2, 3, 4, 5)):
        assert count_positions(torch.zeros(shape), None, None, "gaussian") == 2
        assert count_positions(torch.zeros(shape), torch.zeros(shape), None, "bernoulli") == 2


def test_the_positions_of_a_callable_are_the_integer_labels_of_its_outputs() -> None:
    def function(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.flatten(1).sum(1)

    logits, labels = torch.zeros(2, 3, 5), torch.tensor([[0, -100, 4], [-100, 2, -100]])
    assert count_positions(logits, labels, None, function) == 3
    assert count_positions(logits.movedim(-1, 1), labels, None, function) == 3
    assert count_positions(logits, labels.float(), None, function) == 2
    assert count_positions(logits, labels[:, :2], None, function) == 2
    assert count_positions(logits, None, None, function) == 2
    assert count_positions(logits[:, 0], labels[:, 0], None, function) == 2
    assert count_positions(torch.zeros(2), labels[:, 0], None, function) == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_positions_are_counted_exactly_in_half_precision(dtype: torch.dtype) -> None:
    labels = torch.zeros(33, 2001, dtype=torch.long)
    labels[:, 0] = -100
    logits = torch.zeros(33, 2001, 2, dtype=dtype)
    assert count_positions(logits, labels, None, "categorical") == 33 * 2000
    assert count_positions(logits, None, labels == 0, "categorical") == 33 * 2000


@pytest.mark.parametrize("drawn", [0.0, 1 - 2.0**-24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gaussian_noise_is_finite_at_both_ends(
    drawn: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, drawn))
    (noise,) = cotangents(
        torch.zeros(2, 3, dtype=dtype), None, None,
        kind="sampled", likelihood="gaussian", generator=None, where="",
    )  # fmt: skip
    assert bool(noise.isfinite().all())
    assert bool((noise.abs() > 5).all())


def test_saturated_logits_keep_their_variance() -> None:
    """Where σ(x) rounds to one, 1 − σ(x) does not round to zero; the signs are alike."""
    logits = torch.tensor([[17.0], [30.0], [-17.0], [-30.0], [0.3]])
    targets = torch.tensor([[1.0], [1.0], [0.0], [0.0], [1.0]])
    for kind in ("exact", "empirical"):
        (vector,) = cotangents(
            logits, targets, None, kind=kind, likelihood="bernoulli", generator=None, where=""
        )
        (exact,) = cotangents(
            logits.double(), targets.double(), None, kind=kind, likelihood="bernoulli",
            generator=None, where="",
        )  # fmt: skip
        assert float(vector.abs().min()) > 0
        torch.testing.assert_close(vector.double(), exact, rtol=1e-5, atol=0)


def test_a_class_that_is_nearly_certain_keeps_its_gradient() -> None:
    logits, label = torch.tensor([[0.0, 20.0, 1.0], [0.0, -3.0, 18.0]]), torch.tensor([1, 2])
    for kind in ("sampled", "empirical"):
        vectors = []
        for values in (logits, logits.double()):
            generator = torch.Generator().manual_seed(0)
            vectors += cotangents(
                values, label, None, kind=kind, likelihood="categorical", generator=generator,
                where="",
            )  # fmt: skip
        assert float(vectors[0][0, 1]) > 0
        torch.testing.assert_close(vectors[0].double(), vectors[1], rtol=1e-5, atol=0)


def test_a_mask_that_hides_positions_must_fit_the_outputs() -> None:
    """Of audio, the mask has samples and the outputs have frames; of prompt tuning, more tokens."""
    mask = torch.ones(2, 8, dtype=torch.bool)
    assert count_positions(torch.zeros(2, 5, 3), None, mask, "categorical") == 10
    mask[1, 6:] = False
    assert count_positions(torch.zeros(2, 3), None, mask, "categorical") == 2  # of whole sequences
    assert count_positions(torch.zeros(2, 8, 3), None, mask, "categorical") == 14
    mask[0, 6:] = False
    assert (
        count_positions(torch.zeros(2, 6, 3), None, mask, "categorical") == 12
    )  # cut by the model
    with pytest.raises(ValueError, match=r"has shape \(2, 8\) and hides positions, .* \(2, 5\)"):
        count_positions(torch.zeros(2, 5, 3), None, mask, "categorical")


@pytest.mark.parametrize("classes", [3, 300, 1000])
def test_draws_follow_the_probabilities(classes: int) -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = (3 * torch.randn(classes, generator=generator)).softmax(0)
    probabilities[classes // 2] = 0
    draws = 200_000
    drawn = draw_classes(probabilities.expand(draws, classes), generator)
    counts = torch.bincount(drawn, minlength=classes).double()
    expected = draws * probabilities.double() / probabilities.double().sum()
    assert counts[classes // 2] == 0
    common = expected > 20
    chi2 = float(((counts - expected)[common] ** 2 / expected[common]).sum())
    degrees = int(common.sum())
    assert chi2 < degrees + 5 * (2 * degrees) ** 0.5


def test_a_certain_class_is_always_drawn() -> None:
    for classes in (4, 1000):
        for certain in (0, classes // 3, classes - 1):
            probabilities = torch.zeros(100, classes)
            probabilities[:, certain] = 1
            assert bool((draw_classes(probabilities, None) == certain).all())


@pytest.mark.parametrize("classes", [4, 3 * BLOCK + 7])
def test_draws_do_not_depend_on_how_samples_are_split(classes: int) -> None:
    probabilities = torch.rand(10, classes).softmax(-1)
    whole = draw_classes(probabilities, torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(0)
    parts = [draw_classes(part, generator) for part in probabilities.split(3)]
    assert torch.equal(torch.cat(parts), whole)


def test_uniform_numbers_are_never_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.zeros(shape))
    assert bool((draw_uniform(torch.Size((3,)), torch.zeros(3), None) == 1).all())


def test_normal_numbers_have_mean_zero_and_variance_one() -> None:
    drawn = draw_normal(torch.zeros(100_000), torch.Generator().manual_seed(0))
    assert abs(float(drawn.mean())) < 0.02
    assert abs(float(drawn.var()) - 1) < 0.02


def test_a_callable_likelihood_is_the_per_sample_log_likelihood() -> None:
    model, (x,) = in_float64(lambda: (perceptron(nn.Tanh()), table(5, 8)))
    y = torch.randn(5, 3, dtype=torch.float64)
    actual = ewc.fisher_diagonal(
        model, [(x, y)], kind="empirical", likelihood=lambda out, t: -0.5 * ((out - t) ** 2).sum(1)
    )
    assert_equal_fishers(actual, batch_of_one_fisher(model, (x,), y, the_target, "gaussian"))


def test_a_callable_likelihood_must_give_one_value_per_sample() -> None:
    with pytest.raises(ValueError, match=r"one value per sample, shape \(5,\).*\(5, 3\)"):
        ewc.fisher_diagonal(
            nn.Linear(4, 3), [(torch.randn(5, 4), torch.randn(5, 3))], kind="empirical",
            likelihood=lambda out, t: (out - t) ** 2,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("likelihood", "message"),
    [
        (
            lambda o, t: -F.cross_entropy(o, t, reduction="none") / len(o),
            "treat samples separately",
        ),
        (lambda o, t: (o.log_softmax(0)).sum(1), "treat samples separately"),
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
    with pytest.raises(ValueError, match="depend on its arguments only"):
        ewc.fisher_diagonal(
            nn.Linear(4, 3), [(torch.randn(5, 4), torch.randn(5, 3))], kind="empirical",
            likelihood=lambda o, t: -((o - t) ** 2).sum(1) * scale,
        )  # fmt: skip


BOXES = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).double()


class Parts(nn.Module):
    """Returns a box and class scores, as a dict or as a tuple."""

    def __init__(self, form: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body, self.box, self.scores = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(5, 3)
        self.form = form
        self.double()

    def forward(self, x: Tensor) -> Any:
        hidden = self.body(x).tanh()
        return self.form(self.box(hidden), self.scores(hidden))


def as_dict(box: Tensor, scores: Tensor) -> dict[str, Tensor]:
    return {"box": box, "scores": scores}


def log_p(box: Tensor, scores: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
    """A gaussian box and a categorical label, per sample."""
    label = log_softmax(scores, -1).gather(1, labels[:, None]).squeeze(1)
    return label - (box - boxes).square().sum(1) / 2


def of_dicts(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    return log_p(outputs["box"], outputs["scores"], targets["boxes"], targets["labels"])


def of_tuples(outputs: tuple[Tensor, Tensor], targets: tuple[Tensor, Tensor]) -> Tensor:
    return log_p(*outputs, *targets)


def of_lists(outputs: dict[str, Tensor], targets: list[dict[str, Tensor]]) -> Tensor:
    """As in detection: each image has any number of boxes, and each must be near the output."""
    assert len(outputs["box"]) == len(targets)
    return torch.stack(
        [
            -(outputs["box"][n] - target["boxes"]).square().sum() / 2
            + log_softmax(outputs["scores"][n], -1)[target["labels"]].sum()
            for n, target in enumerate(targets)
        ]
    )


def batch(size: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(size, 6, generator=generator).double()
    boxes = torch.randn(size, 4, generator=generator).double()
    return x, boxes, torch.randint(3, (size,), generator=generator)


def images(size: int) -> list[dict[str, Tensor]]:
    """Targets with 0 to 2 boxes per image."""
    return [{"boxes": BOXES[: n % 3], "labels": torch.arange(n % 3)} for n in range(1, size + 1)]


def reference(model: nn.Module, values: list[Callable[[], Tensor]]) -> dict[str, Tensor]:
    """The mean of the squared gradients of the log-likelihood of each sample."""
    names = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in names.items()}
    for value in values:
        grads = torch.autograd.grad(value().sum(), list(names.values()))
        for name, grad in zip(names, grads, strict=True):
            total[name] += grad.square()
    return {name: tensor / len(values) for name, tensor in total.items()}


def assert_equal(fisher: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert fisher.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(fisher[name], expected[name])


@pytest.mark.parametrize(
    ("form", "likelihood", "targets"),
    [
        (as_dict, of_dicts, lambda boxes, labels: {"boxes": boxes, "labels": labels}),
        (lambda *parts: parts, of_tuples, lambda *parts: parts),
        (lambda *parts: list(parts), of_tuples, lambda *parts: list(parts)),
    ],
    ids=["dict", "tuple", "list"],
)
def test_parts(form: Any, likelihood: Any, targets: Any) -> None:
    model = Parts(form)
    x, boxes, labels = batch(7)
    batches = [(x[:4], targets(boxes[:4], labels[:4])), (x[4:], targets(boxes[4:], labels[4:]))]
    fisher = ewc.fisher_diagonal(model, batches, kind="empirical", likelihood=likelihood)
    one = [slice(n, n + 1) for n in range(7)]
    values = [lambda n=n: likelihood(model(x[n]), targets(boxes[n], labels[n])) for n in one]
    assert_equal(fisher, reference(model, values))


@pytest.mark.parametrize("max_samples", [None, 4])
def test_a_list_of_targets_per_sample(max_samples: int | None) -> None:
    model = Parts(as_dict)
    x, targets = batch(7)[0], images(7)
    batches = [(x[:3], targets[:3]), (x[3:], targets[3:])]
    options: dict[str, Any] = {"kind": "empirical", "likelihood": of_lists}
    fisher = ewc.fisher_diagonal(model, batches, max_samples=max_samples, **options)
    count = max_samples or 7
    values = [lambda n=n: of_lists(model(x[n : n + 1]), [targets[n]]) for n in range(count)]
    assert_equal(fisher, reference(model, values))


def test_keywords_and_their_labels() -> None:
    model = Parts(as_dict)
    x, boxes, labels = batch(5)
    item = {"x": x, "labels": {"boxes": boxes, "labels": labels}}
    options: dict[str, Any] = {"kind": "empirical", "likelihood": of_dicts}
    fisher = ewc.fisher_diagonal(model, [item], **options)
    assert_equal(fisher, ewc.fisher_diagonal(model, [(x, item["labels"])], **options))


def test_a_value_per_sample_is_expected() -> None:
    x, boxes, labels = batch(5)
    item = (x, {"boxes": boxes, "labels": labels})
    with pytest.raises(ValueError, match=r"one value per sample, shape \(5,\); it returned \(\)"):
        ewc.fisher_diagonal(
            Parts(as_dict), [item], kind="empirical", likelihood=lambda *a: of_dicts(*a).mean()
        )


@dataclass
class Output:
    box: Tensor
    scores: Tensor


def test_outputs_of_a_dataclass() -> None:
    def of_output(out: Output, targets: tuple[Tensor, Tensor]) -> Tensor:
        return log_p(out.box, out.scores, *targets)

    x, labels = torch.randn(5, 6).double(), torch.tensor([0, 1, 2, 0, 1])
    actual = ewc.fisher_diagonal(
        Parts(Output), [(x, (BOXES, labels))], kind="empirical", likelihood=of_output
    )
    batch = [(x, {"boxes": BOXES, "labels": labels})]
    expected = ewc.fisher_diagonal(Parts(as_dict), batch, kind="empirical", likelihood=of_dicts)
    torch.testing.assert_close(actual, expected)
    of_scores = ewc.fisher_diagonal(
        Parts(Output),
        [(x, labels)],  # targets that are a tensor: now the output alone decides
        kind="empirical",
        likelihood=lambda out, labels: log_p(out.box, out.scores, out.box, labels),
    )
    torch.testing.assert_close(of_scores["scores.weight"], expected["scores.weight"])


def test_an_encoder_decoder_gets_its_labels_before_a_callable_does() -> None:
    class Decoder(nn.Module):
        config = SimpleNamespace(is_encoder_decoder=True)

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body = nn.Embedding(7, 5).double()

        def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            if labels is None:
                raise ValueError("You have to specify either decoder_input_ids or labels")
            return {"logits": self.body(labels)}

    def of_logits(logits: Tensor, labels: Tensor) -> Tensor:
        return log_softmax(logits, -1)[..., 0].sum(1)

    batch = {"input_ids": torch.randint(7, (4, 6)), "labels": torch.randint(5, (4, 6))}
    model = Decoder()
    actual = ewc.fisher_diagonal(model, [batch], kind="empirical", likelihood=of_logits)
    plain = [(batch["labels"], batch["labels"])]
    expected = ewc.fisher_diagonal(model.body, plain, kind="empirical", likelihood=of_logits)
    torch.testing.assert_close(actual["body.weight"], expected["weight"])


def test_samples_that_mix_are_seen() -> None:
    x, boxes, labels = batch(5)
    item = (x, {"boxes": boxes, "labels": labels})

    def mixed(outputs: Any, targets: Any) -> Tensor:
        values = of_dicts(outputs, targets)
        return values / len(values)

    with pytest.warns(ewc.EWCWarning, match="depends on the other samples"):
        ewc.fisher_diagonal(Parts(as_dict), [item], kind="empirical", likelihood=mixed)


def test_parts_or_samples() -> None:
    with pytest.raises(ValueError, match="are they parts, or samples"):
        ewc.fisher_diagonal(
            Parts(lambda *parts: parts),
            [(batch(2)[0], [torch.zeros(2, 4), torch.zeros(2)])],
            kind="empirical",
            likelihood=of_tuples,
        )


def test_other_structures_need_a_callable() -> None:
    with pytest.raises(TypeError, match="For other structures give a callable likelihood"):
        ewc.fisher_diagonal(Parts(as_dict), [(batch(3)[0], images(3))])


N, C = 5, 3
KINDS = ["exact", "sampled", "empirical"]


def segmentation() -> nn.Module:
    """Segmentation as everybody writes it: (samples, classes, height, width)."""
    return nn.Conv2d(2, C, 3, padding=1)


def labels(*shape: int) -> Tensor:
    return torch.randint(C, shape)


@pytest.mark.parametrize("kind", KINDS)
def test_classes_in_dimension_one(kind: str) -> None:
    x, y = torch.randn(N, 2, 4, 6), labels(N, 4, 6)
    with pytest.raises(ValueError, match=r"classes in dimension 1: return outputs.movedim\(1, -1"):
        ewc.fisher_diagonal(segmentation(), [(x, y)], kind=kind)
    moved = Custom(lambda m, x: m.a(x).movedim(1, -1), a=segmentation())
    assert ewc.fisher_diagonal(moved, [(x, y)], kind=kind)["a.weight"].any()


def test_outputs_like_images_without_targets_are_asked_about() -> None:
    with pytest.warns(ewc.EWCWarning, match=r"last dimension is taken for 6 classes"):
        ewc.fisher_diagonal(segmentation(), [torch.randn(N, 2, 4, 6)], kind="sampled")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(N,), (N, 1), (N, C)])
def test_regression_targets(kind: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="For regression use likelihood='gaussian'"):
        ewc.fisher_diagonal(
            nn.Linear(4, C), [(torch.randn(N, 4), 5 * torch.randn(shape))], kind=kind
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_several_labels_per_sample(kind: str, dtype: torch.dtype) -> None:
    targets = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 1, 1]]).to(dtype)
    batches = [(torch.randn(N, 4), targets)]
    with pytest.raises(ValueError, match="several labels per sample use likelihood='bernoulli'"):
        ewc.fisher_diagonal(nn.Linear(4, C), batches, kind=kind)
    ewc.fisher_diagonal(nn.Linear(4, C), batches, kind=kind, likelihood="bernoulli")


@pytest.mark.parametrize("kind", ["exact", "sampled"])
def test_soft_and_one_hot_labels_agree_with_a_categorical(kind: str) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4, C), torch.randn(N, 4)
    generator = torch.Generator()
    plain = ewc.fisher_diagonal(model, [x], kind=kind, generator=generator.manual_seed(0))
    for targets in (torch.rand(N, C).softmax(-1), nn.functional.one_hot(labels(N), C)):
        actual = ewc.fisher_diagonal(
            model, [(x, targets)], kind=kind, generator=generator.manual_seed(0)
        )
        assert torch.equal(actual["weight"], plain["weight"])
    with pytest.raises(ValueError, match=r"take targets.argmax\(-1\)"):
        ewc.fisher_diagonal(model, [(x, targets)], kind="empirical")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "tail", [nn.Softmax(-1), Custom(lambda m, z: z.exp() / z.exp().sum(-1)[:, None])]
)
def test_a_model_that_ends_in_a_softmax(kind: str, tail: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, C), tail)
    with pytest.raises(ValueError, match="needs logits, but the outputs are probabilities"):
        ewc.fisher_diagonal(model, [(torch.randn(N, 4), labels(N))], kind=kind)


def test_log_probabilities_are_logits() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(4, C).double(), torch.randn(N, 4, dtype=torch.float64)
    expected = ewc.fisher_diagonal(model, [x])
    actual = ewc.fisher_diagonal(nn.Sequential(model, nn.LogSoftmax(-1)), [x])
    assert torch.allclose(actual["0.weight"], expected["weight"], rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_ends_in_a_sigmoid(kind: str) -> None:
    model = nn.Sequential(nn.Linear(4, C), nn.Sigmoid(), nn.Unflatten(1, (1, C)), nn.Flatten())
    batches = [(torch.randn(N, 4), torch.rand(N, C))]
    with pytest.raises(ValueError, match="needs logits, but the model ends in a sigmoid"):
        ewc.fisher_diagonal(model, batches, kind=kind, likelihood="bernoulli")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_class_labels_for_values(kind: str, likelihood: str) -> None:
    with pytest.raises(ValueError, match="For class labels use likelihood='categorical'"):
        ewc.fisher_diagonal(
            nn.Linear(4, C), [(torch.randn(N, 4), labels(N))], kind=kind, likelihood=likelihood
        )


@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_something_else(kind: str) -> None:
    with pytest.raises(ValueError, match="integer labels of shape"):
        ewc.fisher_diagonal(nn.Linear(4, C), [(torch.randn(N, 4), labels(N, 7))], kind=kind)


@pytest.mark.parametrize("kind", ["exact", "sampled"])
def test_one_value_per_sample_may_lack_the_last_dimension(kind: str) -> None:
    batches = [(torch.randn(N, 4), torch.randn(N))]
    ewc.fisher_diagonal(nn.Linear(4, 1), batches, kind=kind, likelihood="gaussian")
    with pytest.raises(ValueError, match=r"outputs' shape \(5, 1\)"):
        ewc.fisher_diagonal(nn.Linear(4, 1), batches, kind="empirical", likelihood="gaussian")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.int32, torch.uint64])
def test_labels_of_any_integer_type(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x, y = nn.Linear(4, C), torch.randn(N, 4), labels(N)
    expected = ewc.fisher_diagonal(model, [(x, y)], kind=kind)
    actual = ewc.fisher_diagonal(model, [(x, y.to(dtype))], kind=kind)
    assert torch.equal(actual["weight"], expected["weight"])
