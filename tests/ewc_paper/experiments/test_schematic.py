"""The options of the schematic: one part, made from what its run directory holds."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import DIVERGED, as_text, assert_only_diverged, make_schematic, write_run

from ewc_paper.errors import RunError
from ewc_paper.experiments import schematic
from ewc_paper.experiments.schematic import Regression, Schematic, TwoParameters
from ewc_paper.experiments.view import draw


def test_the_part_is_made_from_its_stored_options() -> None:
    config = Schematic.preset("quick", samples=50, seed=3)
    (part,) = config.parts()
    learner = part.make(part.config)
    assert isinstance(learner, TwoParameters)
    assert learner.config == config
    assert len(learner.task_a.inputs) == 50


def test_a_landscape_that_needs_too_much_memory_is_refused() -> None:
    Schematic.preset("quick", samples=10_000)
    with pytest.raises(RunError, match=r"take 26\.2 GB: choose a smaller --grid or --samples"):
        Schematic.preset("quick", samples=1_000_000)


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


def test_the_table_has_the_loss_of_both_tasks(tmp_path: Path) -> None:
    shown = as_text(schematic.table(make_schematic(tmp_path)))
    assert all(value in shown for value in ("task A first", "EWC", "0.125", "0.500"))


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_a_run_that_has_just_begun_is_shown_too(rows: int, tmp_path: Path) -> None:
    run = make_schematic(tmp_path / "whole")
    begun = write_run(
        tmp_path / "begun",
        {"experiment": "schematic"},
        {"schematic": ({}, run.part("schematic").rows()[:rows])},
    )
    assert len(draw(schematic, begun)) == min(rows, 1)
    assert schematic.table(begun).row_count == max(0, rows - 1)


def test_a_landscape_without_any_low_loss_is_drawn(tmp_path: Path) -> None:
    high = {"across": [0, 1], "up": [0, 1], "loss_a": [[9, 9], [9, 9]], "loss_b": [[9, 9], [9, 9]]}
    run = write_run(tmp_path, {"experiment": "schematic"}, {"schematic": ({}, [high])})
    assert len(draw(schematic, run)) == 1


@pytest.mark.filterwarnings("error")
def test_a_trajectory_that_diverged_says_so_instead_of_a_number(tmp_path: Path, drawn: Any) -> None:
    way = {"way": "A", "points": [[-2, -2], [9, 9]], "loss_a": 9.8, "loss_b": 9.8, **DIVERGED}
    landscape = make_schematic(tmp_path / "whole").part("schematic").rows()[0]
    rows = {"schematic": ({}, [landscape, way])}
    run = write_run(tmp_path / "diverged", {"experiment": "schematic"}, rows)
    assert_only_diverged(schematic.table(run), ["diverged"] * 2)
    draw(schematic, run)
    assert drawn.legends["schematic"] == ["task A first (diverged)"]
