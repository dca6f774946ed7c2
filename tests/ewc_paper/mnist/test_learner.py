"""Permuted MNIST: the network, its options, one network per method, measured during training."""

import math
from collections.abc import Callable
from dataclasses import asdict, fields
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.runs import OPTIONS, write_data
from torch import nn
from torch.optim import SGD, Adam

from ewc_paper.experiments.learning_curves import LearningCurves
from ewc_paper.mnist.config import METHODS, OptimizationConfig, TasksConfig, TrainingConfig
from ewc_paper.mnist.data import PermutedTasks, load
from ewc_paper.mnist.learner import (
    EarlyStopping,
    PermutedMnistLearner,
    WeightAverage,
    learning_rate,
    make_optimizer,
)
from ewc_paper.mnist.network import accuracy, is_finite, mlp
from ewc_paper.options import check_options, groups
from ewc_paper.seeding import generator


def test_layers_and_widths_are_as_asked() -> None:
    linear = [module for module in mlp(3, 8) if isinstance(module, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [
        (784, 8),
        (8, 8),
        (8, 8),
        (8, 10),
    ]


def test_dropout_is_before_every_linear_layer() -> None:
    rates = [module.p for module in mlp(2, 8, dropout=True) if isinstance(module, nn.Dropout)]
    assert rates == [0.2, 0.5, 0.5]


def test_the_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = mlp(1, 8, seed=1), mlp(1, 8, seed=1), mlp(1, 8, seed=2)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first[0].weight, again[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)


def test_accuracy_keeps_the_mode_and_leaves_dropout_out() -> None:
    model = mlp(1, 8, dropout=True)
    images, labels = torch.rand(50, 784), torch.randint(10, (50,))
    values = {accuracy(model, images, labels, chunk=7) for _ in range(5)}
    assert len(values) == 1
    assert model.training


def test_one_infinite_weight_is_noticed() -> None:
    model = mlp(1, 8)
    assert is_finite(model)
    model[2].bias.data[3] = torch.inf
    assert not is_finite(model)


def test_the_defaults_are_those_of_the_experiments() -> None:
    offered = {one.name: one.default for one in fields(LearningCurves)}
    for config in (TasksConfig, TrainingConfig):
        own = {one.name: one.default for one in fields(config) if one.name in offered}
        assert own.items() <= offered.items()


def test_the_defaults_fit_their_limits() -> None:
    options = [one.name for group in groups(TrainingConfig) for one in fields(group)]
    assert {"method", "seed", "curves"} <= set(options)
    given = {name: value for name, value in asdict(TrainingConfig()).items() if name != "method"}
    check_options(LearningCurves, given)
    check_options(LearningCurves, asdict(TasksConfig()))


def test_the_default_method_is_one_of_them() -> None:
    assert TrainingConfig().method in METHODS


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


def test_the_network_is_trained_where_the_data_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load(write_data(tmp_path, train=160), validation_samples=40)
    config = TrainingConfig(**{**CONFIG, "method": "dropout"})
    there = torch.device("meta")  # a device without values, that every machine has
    saved = finished(PermutedMnistLearner(PermutedTasks(data, seed=1), config)).state_dict()
    # A memory refuses weights without values; its own tests say where it keeps what.
    memory = SimpleNamespace(tasks=(), load_state_dict=lambda state: None)
    monkeypatch.setattr("ewc_paper.mnist.learner.EWC", lambda model, **options: memory)
    learner = PermutedMnistLearner(PermutedTasks(data.to(there), seed=1), config)
    saved["average"] = {"count": 1, "mean": {"0.weight": torch.ones(2)}}
    learner.load_state_dict(saved)
    images = learner.tasks.permuted(learner.tasks.data.test, 1).images
    held = [*learner.model.parameters(), images, *learner.average.mean.values()]
    assert {tensor.device for tensor in held} == {there}
    assert learner.model(images).device == there


def set_to(model: nn.Linear, value: float) -> nn.Linear:
    nn.init.constant_(model.weight, value)
    return model


def test_more_than_five_errors_above_the_lowest_end_the_task() -> None:
    stopping, model = EarlyStopping(), nn.Linear(1, 1, bias=False)
    errors = [0.5, 0.3, 0.4, 0.35, 0.3, 0.4, 0.4, 0.4, 0.39, 0.38, 0.31]
    stopped = [stopping.observe(error, set_to(model, i)) for i, error in enumerate(errors)]
    assert stopped == [False] * 10 + [True]
    assert float(stopping.best["weight"]) == 4  # the last of the lowest errors


def test_the_average_is_the_mean_of_the_weights() -> None:
    average, model = WeightAverage(), nn.Linear(3, 2)
    seen = []
    for _ in range(7):
        nn.init.normal_(model.weight)
        seen.append(model.weight.detach().clone().double())
        average.add(model)
    torch.testing.assert_close(
        average.mean["weight"].double(), torch.stack(seen).mean(0), atol=1e-6, rtol=0
    )


def test_the_rate_falls_within_a_task() -> None:
    config = OptimizationConfig(lr=0.2, schedule="cosine")
    assert [learning_rate(config, t) for t in (0, 0.5, 1)] == pytest.approx([0.2, 0.1, 0.0])
    assert learning_rate(OptimizationConfig(lr=0.2, schedule="linear"), 0.25) == pytest.approx(0.15)
    assert learning_rate(OptimizationConfig(lr=0.2), 0.9) == 0.2


@pytest.mark.parametrize(
    ("name", "kind", "momentum"), [("sgd", SGD, {"momentum": 0.3}), ("adam", Adam, {})]
)
def test_the_optimizer_has_the_rate_and_the_momentum(
    name: Any, kind: type, momentum: dict[str, float]
) -> None:
    config = OptimizationConfig(optimizer=name, lr=0.2, momentum=0.3)
    optimizer = make_optimizer(config, nn.Linear(2, 2).parameters())
    assert type(optimizer) is kind
    assert optimizer.defaults.items() >= {"lr": 0.2, **momentum}.items()
