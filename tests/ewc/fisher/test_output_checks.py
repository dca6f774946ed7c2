"""Outputs and targets that contradict the likelihood are refused, with what may have been meant."""

import pytest
import torch
from support.architectures import Custom
from torch import Tensor, nn

import ewc

N, C = 5, 3
KINDS = ["exact", "sampled", "empirical"]


def images() -> nn.Module:
    """Segmentation as everybody writes it: (samples, classes, height, width)."""
    return nn.Conv2d(2, C, 3, padding=1)


def labels(*shape: int) -> Tensor:
    return torch.randint(C, shape)


@pytest.mark.parametrize("kind", KINDS)
def test_classes_in_dimension_one(kind: str) -> None:
    x, y = torch.randn(N, 2, 4, 6), labels(N, 4, 6)
    with pytest.raises(ValueError, match=r"classes in dimension 1: return outputs.movedim\(1, -1"):
        ewc.fisher_diagonal(images(), [(x, y)], kind=kind)
    moved = Custom(lambda m, x: m.a(x).movedim(1, -1), a=images())
    assert ewc.fisher_diagonal(moved, [(x, y)], kind=kind)["a.weight"].any()


def test_outputs_like_images_without_targets_are_asked_about() -> None:
    with pytest.warns(ewc.EWCWarning, match=r"last dimension is taken for 6 classes"):
        ewc.fisher_diagonal(images(), [torch.randn(N, 2, 4, 6)], kind="sampled")


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
