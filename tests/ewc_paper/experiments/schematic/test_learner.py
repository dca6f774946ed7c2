"""With two parameters, EWC ends where both tasks are solved, and the others do not."""

import json
from itertools import islice

import torch

from ewc_paper.experiments.schematic.learner import Regression, TwoParameters
from ewc_paper.experiments.schematic.run import Schematic


def test_only_ewc_solves_both_tasks() -> None:
    rows = {row["way"]: row for row in TwoParameters(Schematic()).run() if "way" in row}
    assert rows["sgd"]["loss_b"] < 0.05 < 1 < rows["sgd"]["loss_a"]
    assert rows["l2"]["loss_b"] > 0.5
    assert max(rows["ewc"]["loss_a"], rows["ewc"]["loss_b"]) < 0.25
    assert rows["ewc"]["points"][0] == rows["A"]["points"][-1]


def test_it_continues_where_it_was_stopped() -> None:
    config = Schematic(gradient_steps=20, grid=3)
    rows = list(TwoParameters(config).run())
    first, second = TwoParameters(config), TwoParameters(config)
    begun = list(islice(first.run(), 2))
    second.load_state_dict(first.state_dict())
    assert begun + list(second.run()) == rows


def test_a_trajectory_that_diverges_says_so() -> None:
    *_, last = TwoParameters(Schematic.preset("quick", lr=1e3)).run()
    assert last["way"] == "A"  # there is nothing to protect
    assert last["diverged"]
    assert 0 < len(last["points"]) < 1000
    assert json.dumps(last, allow_nan=False)


def test_the_loss_is_half_the_mean_squared_error() -> None:
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(7, 2, generator=random), torch.randn(7, generator=random)
    thetas = torch.tensor([[0.5, -1.0], [2.0, 3.0]])
    expected = [
        sum((theta @ x[n] - y[n]) ** 2 for n in range(len(y))) / (2 * len(y)) for theta in thetas
    ]
    torch.testing.assert_close(Regression(x, y).loss(thetas), torch.stack(expected))


def test_the_landscape_has_a_row_per_second_parameter() -> None:
    learner = TwoParameters(Schematic(gradient_steps=1, grid=3))
    landscape = next(learner.run())
    for up, theta_2 in enumerate(landscape["up"]):
        for across, theta_1 in enumerate(landscape["across"]):
            loss = learner.task_a.loss(torch.tensor([[theta_1, theta_2]]))
            torch.testing.assert_close(torch.tensor(landscape["loss_a"][up][across]), loss[0])
