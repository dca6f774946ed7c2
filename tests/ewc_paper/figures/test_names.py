"""Methods, arms, tasks and games have labels to read."""

import pytest

from ewc_paper.experiments.games.run import ARMS
from ewc_paper.experiments.many_tasks.run import SINGLE
from ewc_paper.figures.names import ARM_LABELS, METHOD_LABELS, game_name, in_order, task_name
from ewc_paper.mnist.config import METHODS


def test_every_arm_and_method_that_can_be_run_has_a_label() -> None:
    assert list(ARM_LABELS) == list(ARMS)
    assert METHOD_LABELS.keys() == {*METHODS, SINGLE}


def test_items_come_in_the_order_given_and_others_last() -> None:
    items = {"a": 1, "b": 2, "c": 3}
    assert list(in_order(items, ["c", "missing", "b"]).items()) == [("c", 3), ("b", 2), ("a", 1)]


@pytest.mark.parametrize(("task", "name"), [(0, "A"), (25, "Z"), (26, "27")])
def test_tasks_are_letters_and_then_numbers(task: int, name: str) -> None:
    assert task_name(task) == name


@pytest.mark.parametrize(
    ("game", "name"),
    [
        ("CrazyClimber", "Crazy Climber"),
        ("UpNDown", "Up'n Down"),
        ("minatar/space_invaders", "space invaders"),
        ("minatar/breakout:rotate90,actions1,channels12", "breakout 90° a1 c12"),
        ("minatar/asterix:mirror", "asterix mirror"),
    ],
)
def test_games_have_names_to_read(game: str, name: str) -> None:
    assert game_name(game) == name
