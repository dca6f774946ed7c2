"""Learning tasks one after another: one training loop for every method.

The loop is a generator that knows nothing of logs, files or screens. It yields after each segment
of an epoch, and then `state_dict()` holds all that is needed to continue from there, bit for bit.
Before it come the optimizer, the learning rate, and the two ways to choose the weights that a task
ends with: the best on validation, or a mean of late ones.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from ewc.memory import EWC
from ewc_paper.device import on_device
from ewc_paper.mnist.config import METHODS, OptimizationConfig, TrainingConfig
from ewc_paper.mnist.data import PermutedTasks, Split
from ewc_paper.mnist.network import accuracy, is_finite, mlp
from ewc_paper.seeding import derive_seed, generator


class EarlyStopping:
    """The rule of the paper's appendix, for one task.

    It looks at the validation error over all tasks so far, at the end of every segment. When the
    error has been above its lowest value more than `PATIENCE` times in a row, the task ends, and
    the weights are set back to those of the lowest error.
    """

    PATIENCE = 5

    def __init__(self) -> None:
        self.lowest = math.inf
        self.increases = 0
        self.best: dict[str, Tensor] = {}

    def observe(self, error: float, model: nn.Module) -> bool:
        """Note an error; return whether the task ends."""
        if error <= self.lowest:
            self.lowest, self.increases = error, 0
            self.best = {name: w.detach().clone() for name, w in model.state_dict().items()}
        else:
            self.increases += 1
        return self.increases > self.PATIENCE

    def state_dict(self) -> dict[str, object]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, object]) -> None:
        vars(self).update(state)


class WeightAverage:
    """The running mean of the weights: mean ← mean + (θ − mean) / n."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: dict[str, Tensor] = {}

    @torch.no_grad()
    def add(self, model: nn.Module) -> None:
        weights = {name: w.detach() for name, w in model.named_parameters()}
        self.count += 1
        if self.count == 1:
            self.mean = {name: w.clone() for name, w in weights.items()}
        torch._foreach_lerp_(list(self.mean.values()), list(weights.values()), 1 / self.count)

    def state_dict(self) -> dict[str, object]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, object]) -> None:
        vars(self).update(state)


def make_optimizer(config: OptimizationConfig, parameters: Iterable[nn.Parameter]) -> Optimizer:
    if config.optimizer == "adam":
        return Adam(parameters, lr=config.lr, fused=True)
    return SGD(parameters, lr=config.lr, momentum=config.momentum, fused=True)


def learning_rate(config: OptimizationConfig, trained: float) -> float:
    """The rate when the fraction `trained` of a task's epochs is over; every task starts anew."""
    match config.schedule:
        case "constant":
            return config.lr
        case "linear":
            return config.lr * (1 - trained)
        case "cosine":
            return config.lr * (1 + math.cos(math.pi * trained)) / 2


FISHER_BATCH = 500
AVERAGE_EVERY = (
    5  # gradient steps: successive weights are much alike, and a mean costs as much as a step
)


class PermutedMnistLearner:
    """One network that learns the tasks 0, 1, 2, ... by one method."""

    def __init__(self, tasks: PermutedTasks, config: TrainingConfig) -> None:
        self.tasks = tasks
        self.config = config
        self.method = METHODS[config.method]
        self.device = tasks.data.train.images.device
        model = mlp(config.layers, config.width, dropout=self.method.dropout, seed=config.seed)
        self.model = model.to(self.device)
        # Every method has a memory; that of plain SGD stays empty. The L2 baseline keeps only the
        # weights of the last task: decay 0.
        decay = 0.0 if self.method.pull == "l2" else config.decay
        factored = self.method.kronecker or (
            config.curvature == "kronecker" and self.method.pull == "ewc"
        )
        self.memory = EWC(
            self.model,
            strength=config.strength,
            decay=decay,
            curvature="kronecker" if factored else "diagonal",
            center=None if config.center == "auto" or factored else config.center,
        )
        self.task = self.epoch = self.segment = self.gradient_steps = 0
        self.diverged = False
        self._begin_task()

    def run(self) -> Iterator[dict[str, Any] | None]:
        """Train to the end; yields a row of measurements, or None where nothing is recorded."""
        while self.progress < 1:
            task, epoch = self.task, self.epoch + (self.segment + 1) / self.config.segments
            loss = self._train_segment()
            task_ended = self._advance(loss)
            row: dict[str, Any] = {"task": task, "epoch": epoch, "task_ended": task_ended}
            row["gradient_steps"] = self.gradient_steps
            row["loss"] = loss if math.isfinite(loss) else None
            wanted = task_ended and (
                self.progress == 1 or (task + 1) % self.config.measure_every == 0
            )
            yield row | self._measure(task) if wanted or self.config.curves else None

    @property
    def progress(self) -> float:
        """The fraction of all training that is over."""
        if self.diverged:
            return 1.0
        return (self.task + self._trained) / self.config.tasks

    @property
    def _trained(self) -> float:
        return (self.epoch + self.segment / self.config.segments) / self.config.epochs

    def _begin_task(self) -> None:
        self.epoch = self.segment = 0
        self.stopping = EarlyStopping()
        self.average = WeightAverage()
        # A new optimizer: the momentum of the last task is of no use to the next.
        self.optimizer = make_optimizer(self.config, self.model.parameters())
        if self.memory.tasks:  # an empty one has no pull and would yet cost time at every step
            self._attach()

    def _attach(self) -> None:
        self.memory.attach(self.optimizer, how=self.config.how)

    def _train_segment(self) -> float:
        """Train for one segment and return its mean loss."""
        config, data = self.config, self._epoch_data()
        random = generator(config.seed, "shuffle", self.task, self.epoch)
        order = torch.randperm(len(data), generator=random).to(self.device)
        batches = order.split(config.batch_size)
        first = len(batches) * self.segment // config.segments
        last = len(batches) * (self.segment + 1) // config.segments
        averaged_from = (1 - config.average) * config.epochs * len(batches)
        # The rate changes only between segments, so that the pull is prepared once per segment.
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config, self._trained)
        self.model.train()
        total = torch.zeros((), device=self.device)
        with torch.random.fork_rng():
            torch.manual_seed(
                derive_seed(config.seed, "dropout", self.task, self.epoch, self.segment)
            )
            for number, rows in enumerate(batches[first:last], self.epoch * len(batches) + first):
                self.optimizer.zero_grad()
                batch = data.take(rows)
                loss = F.cross_entropy(self.model(batch.images), batch.labels)
                loss.backward()
                self.optimizer.step()
                total += loss.detach()
                if number >= averaged_from and number % AVERAGE_EVERY == 0:
                    self.average.add(self.model)
        self.gradient_steps += last - first
        return float(total) / max(1, last - first)

    def _epoch_data(self) -> Split:
        """The permuted training data, made once per task, or once per epoch for joint training."""
        key = (self.task, self.epoch if self.method.joint else 0)
        if getattr(self, "_data_key", None) != key:
            if self.method.joint:
                random = generator(self.config.seed, "mixture", self.task, self.epoch)
                self._data = self.tasks.mixture(range(self.task + 1), random)
            else:
                self._data = self.tasks.permuted(self.tasks.data.train, self.task)
            self._data_key = key
        return self._data

    def _advance(self, loss: float) -> bool:
        """Move on to the next segment; true when that ended the task."""
        self.segment += 1
        if self.segment == self.config.segments:
            self.epoch, self.segment = self.epoch + 1, 0
        self.diverged = not (math.isfinite(loss) and is_finite(self.model))
        stop = self._stops_early()
        if not (stop or self.diverged or self.epoch == self.config.epochs):
            return False
        final_weights = self.stopping.best or self.average.mean
        if final_weights:
            self.model.load_state_dict(final_weights)
        if not self.diverged:
            self._remember()
        self.task += 1
        self._begin_task()
        return True

    def _stops_early(self) -> bool:
        if not self.method.dropout:
            return False
        accuracies = self._accuracies(self.tasks.data.validation, self.task)
        return self.stopping.observe(1 - sum(accuracies) / len(accuracies), self.model)

    def _remember(self) -> None:
        """Consolidate the task just learned, so that the next ones leave its weights in place."""
        if self.method.pull == "l2":
            self.memory.anchor(1.0, task=str(self.task))
        elif self.method.pull == "ewc":
            self.memory.consolidate(
                self.fisher_batches(self.task),
                task=str(self.task),
                kind=self.config.kind,
                floor=self.config.floor,
                generator=generator(self.config.seed, "fisher", self.task),
            )

    def fisher_batches(self, task: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The task's first `fisher_samples` training images, in batches."""
        sample = self.tasks.permuted(self.tasks.data.train[: self.config.fisher_samples], task)
        yield from zip(
            sample.images.split(FISHER_BATCH), sample.labels.split(FISHER_BATCH), strict=True
        )

    def _measure(self, task: int) -> dict[str, Any]:
        """The accuracy on every task so far, on the test and on the validation images."""
        # A network of NaNs learns nothing more, so this row is also that of all later tasks.
        task = self.config.tasks - 1 if self.diverged else task
        measured: dict[str, Any] = {"accuracy": self._accuracies(self.tasks.data.test, task)}
        if len(self.tasks.data.validation):
            measured["validation"] = self._accuracies(self.tasks.data.validation, task)
        return measured | ({"task": task, "diverged": True} if self.diverged else {})

    def _accuracies(self, split: Split, task: int) -> list[float]:
        splits = (self.tasks.permuted(split, earlier) for earlier in range(task + 1))
        return [accuracy(self.model, each.images, each.labels) for each in splits]

    def state_dict(self) -> dict[str, Any]:
        """All that training depends on, as tensors and plain values."""
        return {
            "task": self.task,
            "epoch": self.epoch,
            "segment": self.segment,
            "gradient_steps": self.gradient_steps,
            "diverged": self.diverged,
            "model": self.model.state_dict(),
            "memory": self.memory.state_dict(),
            "optimizer": {str(k): v for k, v in self.optimizer.state_dict()["state"].items()},
            "stopping": self.stopping.state_dict(),
            "average": self.average.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from where `state_dict` was called, with the same tasks and config."""
        self.model.load_state_dict(state["model"])
        self.memory.load_state_dict(state["memory"])
        self._begin_task()
        for name in ("task", "epoch", "segment", "gradient_steps", "diverged"):
            setattr(self, name, state[name])
        optimizer = self.optimizer.state_dict()
        optimizer["state"] = {int(k): v for k, v in state["optimizer"].items()}
        self.optimizer.load_state_dict(optimizer)
        self.stopping.load_state_dict(on_device(state["stopping"], self.device))
        self.average.load_state_dict(on_device(state["average"], self.device))
