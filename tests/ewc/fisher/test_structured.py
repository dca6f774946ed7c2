"""Outputs and targets of any structure, beside a loop over single samples in float64."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

import ewc
from ewc.fisher.structured import LogLikelihoodModel

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


def test_the_model_is_as_it_was() -> None:
    model = Parts(as_dict).train()
    x, boxes, labels = batch(5)
    state = torch.get_rng_state()
    memory = ewc.EWC(model, strength=1.0)
    targets = {"boxes": boxes, "labels": labels}
    memory.consolidate([(x, targets)], kind="empirical", likelihood=of_dicts)
    assert model.training
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)


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


def test_the_wrapped_model_returns_log_likelihoods() -> None:
    model = Parts(as_dict)
    x, boxes, labels = batch(3)
    targets = {"boxes": boxes, "labels": labels}
    assert torch.equal(LogLikelihoodModel(model, of_dicts)(x, targets), of_dicts(model(x), targets))
