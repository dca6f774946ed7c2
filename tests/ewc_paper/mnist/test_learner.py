"""One loop for every method: it trains as a plain loop does, and resumes bit for bit."""

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny import OPTIONS, write_data
from torch import nn

from ewc_paper.mnist.config import METHODS, TrainingConfig
from ewc_paper.mnist.data import load
from ewc_paper.mnist.learner import PermutedMnistLearner
from ewc_paper.mnist.network import mlp
from ewc_paper.mnist.tasks import PermutedTasks
from ewc_paper.seeding import generator

CONFIG = {
    **{name: OPTIONS[name] for name in OPTIONS if not name.endswith("_samples")},
    "fisher_samples": 40,
    "strength": 100.0,
    "average": 0.0,
}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., PermutedMnistLearner]:
    data = load(write_data(tmp_path, train=160), validation_samples=40)

    def make(**options: Any) -> PermutedMnistLearner:
        config = TrainingConfig(**{**CONFIG, **options})
        return PermutedMnistLearner(PermutedTasks(data, seed=1), config)

    return make


def finished(learner: PermutedMnistLearner) -> PermutedMnistLearner:
    list(learner.run())
    return learner


def weights(learner: PermutedMnistLearner) -> torch.Tensor:
    return torch.cat([w.detach().flatten() for w in learner.model.parameters()])


def test_plain_sgd_is_a_plain_loop(make: Callable[..., PermutedMnistLearner]) -> None:
    learner = finished(make(method="sgd", schedule="linear", segments=1))
    model = mlp(1, 8, seed=0)
    for task in range(2):
        data = learner.tasks.permuted(learner.tasks.data.train, task)
        velocity = [torch.zeros_like(w) for w in model.parameters()]
        for epoch in range(2):
            order = torch.randperm(120, generator=generator(0, "shuffle", task, epoch))
            for start in range(0, 120, 20):
                rows = order[start : start + 20]
                loss = nn.CrossEntropyLoss()(model(data.images[rows]), data.labels[rows])
                grads = torch.autograd.grad(loss, list(model.parameters()))
                for w, v, g in zip(model.parameters(), velocity, grads, strict=True):
                    v.mul_(0.9).add_(g)
                    w.data -= learner.config.lr * (1 - epoch / 2) * v
    for ours, plain in zip(learner.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("average", [0.0, 0.6])
def test_a_learner_restored_after_any_segment_ends_bit_for_bit_the_same(
    make: Callable[..., PermutedMnistLearner], method: str, average: float
) -> None:
    options = {"method": method, "curves": True, "average": average, "schedule": "cosine"}
    learner = make(**options)
    states, rows = [_copy(learner.state_dict())], []
    for row in learner.run():
        states.append(_copy(learner.state_dict()))
        rows.append(row)
    for done, state in enumerate(states):
        restored = make(**options)
        restored.load_state_dict(state)
        assert list(restored.run()) == rows[done:]
        assert torch.equal(weights(restored), weights(learner))


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return {key: _copy(item) for key, item in value.items()} if isinstance(value, dict) else value


def test_ewc_of_strength_zero_is_plain_sgd(make: Callable[..., PermutedMnistLearner]) -> None:
    plain, free = finished(make(method="sgd")), finished(make(method="ewc", strength=0.0))
    assert torch.equal(weights(plain), weights(free))


@pytest.mark.parametrize("method", ["ewc", "l2"])
def test_the_pull_keeps_the_weights_near_the_first_solution(
    make: Callable[..., PermutedMnistLearner], method: str
) -> None:
    def distance(strength: float) -> float:
        learner = make(method=method, strength=strength)
        run = learner.run()
        while learner.task == 0:
            next(run)
        solution = weights(learner)
        list(run)
        return float((weights(learner) - solution).norm())

    distances = [distance(strength) for strength in (0.0, 1.0, 1e3)]
    assert all(after < before for before, after in pairwise(distances))


def test_l2_holds_the_previous_solution_alone(make: Callable[..., PermutedMnistLearner]) -> None:
    learner = finished(make(method="l2", strength=2.0))
    assert learner.memory.penalty().item() == 0  # at the last solution itself
    with torch.no_grad():
        for w in learner.model.parameters():
            w += 0.5
    torch.testing.assert_close(learner.memory.penalty().item(), 0.25 * len(weights(learner)))


def test_dropout_ends_with_the_weights_of_the_lowest_validation_error(
    make: Callable[..., PermutedMnistLearner],
) -> None:
    learner = make(method="dropout", tasks=1, epochs=200, lr=0.2, segments=1)
    errors: list[float] = []
    observe = learner.stopping.observe

    def noted(error: float, model: nn.Module) -> bool:
        errors.append(error)
        return observe(error, model)

    learner.stopping.observe = noted  # type: ignore[method-assign]
    list(learner.run())
    after_lowest = errors[::-1].index(min(errors))
    assert after_lowest == 6  # more than five in a row above the lowest
    (accuracy,) = learner._accuracies(learner.tasks.data.validation, 0)
    assert 1 - accuracy == min(errors)


def test_joint_training_learns_all_tasks_so_far(make: Callable[..., PermutedMnistLearner]) -> None:
    rows = [row for row in make(method="joint", epochs=40, width=32).run() if row]
    assert min(rows[-1]["accuracy"]) > 0.9


def test_training_that_diverges_ends_and_says_so(make: Callable[..., PermutedMnistLearner]) -> None:
    rows = [row for row in make(how="gradient", strength=1e30, tasks=3).run() if row]
    assert rows[-1]["diverged"]
    assert rows[-1]["loss"] is None
    assert len(rows[-1]["accuracy"]) == 3


def test_weights_that_only_the_last_step_made_infinite_have_diverged(
    make: Callable[..., PermutedMnistLearner], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make(epochs=1, segments=1, tasks=1)
    train = learner._train_segment

    def train_and_break() -> float:
        loss = train()
        next(learner.model.parameters()).data[0] = math.inf
        return loss

    monkeypatch.setattr(learner, "_train_segment", train_and_break)
    (row,) = [row for row in learner.run() if row]
    assert row["diverged"]


def test_rows_are_measured_after_each_task_or_each_segment(
    make: Callable[..., PermutedMnistLearner],
) -> None:
    assert [row is None for row in make().run()] == [True, True, True, False] * 2
    learner = make(curves=True)
    rows = list(learner.run())
    assert [(row["task"], row["epoch"]) for row in rows if row][:5] == [
        (0, 0.5),
        (0, 1),
        (0, 1.5),
        (0, 2),
        (1, 0.5),
    ]
    assert [row["gradient_steps"] for row in rows if row] == list(range(3, 25, 3))
    test = learner.tasks.permuted(learner.tasks.data.test, 1)
    guessed = learner.model(test.images).argmax(1)
    assert rows[-1] is not None
    assert rows[-1]["accuracy"][1] == (guessed == test.labels).double().mean().item()


def test_the_network_is_trained_where_the_data_are(tmp_path: Path) -> None:
    data = load(write_data(tmp_path, train=160), validation_samples=40)
    config = TrainingConfig(**{**CONFIG, "method": "dropout"})
    there = torch.device("meta")  # a device without numbers, that every machine has
    learner = PermutedMnistLearner(PermutedTasks(data.to(there), seed=1), config)
    saved = finished(PermutedMnistLearner(PermutedTasks(data, seed=1), config)).state_dict()
    saved["average"] = {"count": 1, "mean": {"0.weight": torch.ones(2)}}
    learner.load_state_dict(saved)
    images = learner.tasks.permuted(learner.tasks.data.test, 1).images
    held = [*learner.model.parameters(), images, *learner.average.mean.values()]
    assert {tensor.device for tensor in held} == {there}
    assert learner.model(images).device == there
