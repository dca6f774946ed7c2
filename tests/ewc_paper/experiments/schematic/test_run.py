"""The options of the schematic: one part, made from what its run directory holds."""

import pytest

from ewc_paper.errors import RunError
from ewc_paper.experiments.schematic.learner import TwoParameters
from ewc_paper.experiments.schematic.run import Schematic


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
