"""Perturbation: the score over the size of noise, one line per shape."""

from pathlib import Path
from typing import Any

import pytest
from support.small_runs import make_perturbation, write_run
from support.views import as_text

from ewc_paper.experiments.perturbation import figure
from ewc_paper.experiments.perturbation.run import Perturbations


def test_every_shape_that_can_be_run_has_a_label() -> None:
    assert tuple(figure.SHAPE_LABELS) == Perturbations().shapes


def test_the_table_has_scores_with_and_without_noise(tmp_path: Path) -> None:
    shown = as_text(figure.table(make_perturbation(tmp_path)))
    values = (
        "inverse Fisher",
        "random player",
        "1.75 ± 0.35",
        "100.25 ± 0.35",
        "59.65 ± 0.35",
        "18.25 ± 0.35",
    )
    assert all(value in shown for value in values)


def test_sizes_are_sorted_and_no_noise_is_apart(tmp_path: Path) -> None:
    without_noise, with_noise = figure.scores(make_perturbation(tmp_path))
    assert without_noise == [100.0, 100.5]
    assert {shape: list(sizes) for shape, sizes in with_noise.items()} == {
        shape: [0.01, 0.1] for shape in ("uniform", "inverse-fisher", "nullspace")
    }


def test_the_random_player_is_drawn_where_it_was_measured(tmp_path: Path, drawn: Any) -> None:
    figure.draw(make_perturbation(tmp_path))
    assert drawn.legends["perturbation"][-2:] == ["no noise", "random player"]


@pytest.mark.parametrize("shapes", [("nullspace", "uniform"), ("uniform", "nullspace")])
def test_shapes_are_in_the_order_given(shapes: tuple[str, ...], tmp_path: Path, drawn: Any) -> None:
    rows = [{"kind": "noise", "shape": s, "scale": 0.1, "scores": [1.0]} for s in sorted(shapes)]
    config = {"experiment": "perturbation", "game": "Pong", "shapes": list(shapes)}
    figure.draw(write_run(tmp_path, config, {"seed0": ({}, rows)}))
    assert drawn.legends["perturbation"] == [figure.SHAPE_LABELS[shape] for shape in shapes]
