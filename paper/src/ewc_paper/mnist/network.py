"""The paper's network: fully connected layers of one width with rectified linear units."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ewc_paper.mnist.data import CLASSES, PIXELS
from ewc_paper.seeding import derive_seed

INPUT_DROPOUT, HIDDEN_DROPOUT = 0.2, 0.5


def mlp(layers: int, width: int, *, dropout: bool = False, seed: int = 0) -> nn.Sequential:
    """784 inputs, `layers` hidden layers of `width`, 10 logits; dropout as in the appendix."""

    def modules() -> Iterator[nn.Module]:
        inputs = PIXELS
        if dropout:
            yield nn.Dropout(INPUT_DROPOUT)
        for _ in range(layers):
            yield nn.Linear(inputs, width)
            yield nn.ReLU()
            if dropout:
                yield nn.Dropout(HIDDEN_DROPOUT)
            inputs = width
        yield nn.Linear(inputs, CLASSES)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "weights"))
        return nn.Sequential(*modules())


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor, chunk: int = 2000) -> float:
    """The fraction of images whose largest logit is the label's; the model's mode is kept."""
    training = model.training
    model.eval()
    correct = sum(
        int((model(part).argmax(1) == truth).sum())
        for part, truth in zip(images.split(chunk), labels.split(chunk), strict=True)
    )
    model.train(training)
    return correct / len(labels)


def is_finite(model: nn.Module) -> bool:
    """Whether no weight is infinite or NaN."""
    return all(bool(torch.isfinite(weight).all()) for weight in model.parameters())
