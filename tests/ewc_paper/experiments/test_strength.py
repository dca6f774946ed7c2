"""One network per strength, way and seed."""

from pathlib import Path
from typing import Any

import pytest
from support.runs import (
    DIVERGED,
    as_text,
    assert_markers_are_whole,
    assert_only_diverged,
    end,
    make_strength,
    write_run,
)

from ewc_paper.experiments import strength
from ewc_paper.experiments.strength import Strength
from ewc_paper.experiments.view import draw


def test_every_strength_is_tried_in_every_way_with_every_seed() -> None:
    parts = Strength.preset("quick", strengths=(1.0, 2.5), seed=4, seeds=2).parts()
    names = ("how", "strength", "seed")
    found = {part.name: tuple(part.config["recipe"][name] for name in names) for part in parts}
    assert found == {
        f"{how}-{strength:g}-seed{seed}": (how, strength, seed)
        for how in ("proximal", "gradient")
        for strength in (1.0, 2.5)
        for seed in (4, 5)
    }


def test_the_table_has_means_and_deviations(tmp_path: Path) -> None:
    shown = as_text(strength.table(make_strength(tmp_path)))
    assert all(value in shown for value in ("proximal", "87.50 ± 3.54"))


def test_strengths_are_sorted_with_one_value_per_seed(tmp_path: Path) -> None:
    results = strength.averages(make_strength(tmp_path))
    assert list(results["proximal"]) == [1.0, 10.0]
    for values in results["proximal"].values():
        assert values == {"seed 0": pytest.approx(85.0), "seed 1": pytest.approx(90.0)}
    assert list(results["proximal"]) == [1.0, 10.0]


@pytest.mark.parametrize("ways", [("proximal", "gradient"), ("gradient", "proximal")])
def test_pulls_are_in_the_order_given_and_the_second_panel_is_zoomed(
    ways: tuple[str, ...], tmp_path: Path, drawn: Any
) -> None:
    parts = {
        f"{how}-{value:g}": (
            {"recipe": {"how": how, "strength": value, "tasks": 1}},
            [end(0, 1.0 if value == 1 else 0.2)],
        )
        for how in ways
        for value in (1.0, 10.0)
    }
    config = {"experiment": "strength", "tasks": 1, "ways": list(ways)}
    draw(strength, write_run(tmp_path, config, parts))
    whole, zoomed = drawn.panels["strength"]
    assert drawn.legends["strength"] == list(ways)
    assert whole.get_title(loc="left") == ""
    assert "zoomed" in zoomed.get_title(loc="left")
    assert_markers_are_whole(whole)


@pytest.mark.filterwarnings("error")
def test_a_network_that_diverged_says_so_instead_of_a_number(tmp_path: Path, drawn: Any) -> None:
    parts = {
        how: (
            {"recipe": {"how": how, "strength": 1.0, "tasks": 1}},
            [end(0, 0.098, **DIVERGED) if how == "gradient" else end(0, 0.9)],
        )
        for how in ("proximal", "gradient")
    }
    run = write_run(tmp_path, {"experiment": "strength", "tasks": 1}, parts)
    assert_only_diverged(strength.table(run), ["diverged"])
    draw(strength, run)
    assert "gradient, diverged" in drawn.legends["strength"]
