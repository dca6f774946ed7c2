"""One network per method, measured during training."""

import pytest

from ewc_paper.errors import RunError
from ewc_paper.experiments.learning_curves.run import LearningCurves


def test_every_method_is_a_part_with_its_own_strength() -> None:
    parts = LearningCurves.preset("quick", strength=7.0, l2_strength=0.5).parts()
    found = {part.name: part.config["recipe"] for part in parts}
    assert {name: recipe["method"] for name, recipe in found.items()} == {
        "ewc": "ewc",
        "l2": "l2",
        "sgd": "sgd",
    }
    assert [found[name]["strength"] for name in ("ewc", "l2")] == [7.0, 0.5]
    assert all(recipe["curves"] for recipe in found.values())


def test_more_tasks_than_the_figure_has_panels_are_refused() -> None:
    LearningCurves.preset("quick", tasks=100)
    with pytest.raises(RunError, match="--tasks must be at most 100, got 101"):
        LearningCurves.preset("quick", tasks=101)
