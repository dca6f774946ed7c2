"""What becomes of a task if batch norm follows the next one.

    python -m benchmarks.studies.batch_norm

A small convolutional network with batch norm and one head per task learns MNIST, then the same
digits with other pixel values. The weights are protected in the same way in all rows but the
first; they differ in what is done about the running statistics.
"""

import argparse
import warnings
from collections.abc import Callable, Mapping
from statistics import mean

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import ewc
from ewc_paper.mnist.data import load

SAMPLES = 20_000  # images per task, seen once
STRENGTH = 100.0
ROWS = ("no memory", "free", "put back", "hold")
SECOND_TASKS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "inverted": lambda images: 1 - images,
    "3x + 2": lambda images: 3 * images + 2,
}


class Network(nn.Module):
    """Two convolutions with batch norm, and one head per task."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(32 * 36, 64), nn.BatchNorm1d(64), nn.ReLU()),
        )
        self.heads = nn.ModuleList([nn.Linear(64, 10), nn.Linear(64, 10)])

    def forward(self, images: Tensor, task: int) -> Tensor:
        """Return the logits of a task."""
        logits: Tensor = self.heads[task](self.body(images))
        return logits


def accuracies(row: str, second: str, seed: int, samples: int = SAMPLES) -> list[float]:
    """Return the accuracy on the first task when learned, and on both after the second.

    Args:
        row: one of `ROWS`. "put back" keeps the statistics of the first task, and puts them back
            before it is tested.
        second: one of `SECOND_TASKS`.
        seed: of the network and the order of the images.
        samples: images per task.
    """
    torch.manual_seed(seed)
    mnist, change = load(), SECOND_TASKS[second]
    images, labels = mnist.train.images[:samples].unflatten(1, (1, 28, 28)), mnist.train.labels
    tests = mnist.test.images.unflatten(1, (1, 28, 28))
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    memory = ewc.EWC(
        model,
        strength=STRENGTH,
        parameters="body.*",
        statistics="hold" if row == "hold" else "free",
    )
    if row != "no memory":
        memory.attach(optimizer)

    def train(inputs: Tensor, task: int) -> None:
        model.train()
        for batch in torch.randperm(len(inputs)).split(64):
            optimizer.zero_grad()
            cross_entropy(model(inputs[batch], task), labels[batch]).backward()
            optimizer.step()

    @torch.no_grad()
    def accuracy(inputs: Tensor, task: int) -> float:
        model.eval()
        right = model(inputs, task).argmax(1) == mnist.test.labels
        return float(right.float().mean())

    train(images, 0)
    learned = accuracy(tests, 0)
    memory.consolidate([((part, 0),) for part in images[:2000].split(500)], kind="sampled")
    statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
    train(change(images), 1)
    new = accuracy(change(tests), 1)
    if row == "put back":
        model.load_state_dict(statistics, strict=False)
    return [learned, accuracy(tests, 0), new]


def main(arguments: list[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.batch_norm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--samples", type=int, default=SAMPLES, help="images per task")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ewc.EWCWarning)
    torch.set_num_threads(1)
    print(f"{'second task':14}{'statistics':14}{'learned':>10}{'kept':>10}{'second':>10}")
    for second in SECOND_TASKS:
        for row in ROWS:
            runs = [accuracies(row, second, seed, options.samples) for seed in options.seeds]
            cells = (f"{100 * mean(values):.1f} %" for values in zip(*runs, strict=True))
            print(f"{second:14}{row:14}" + "".join(f"{cell:>10}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
