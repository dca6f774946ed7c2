"""Which arm has what is known in one place, and every arm has a name for figures."""

from ewc_paper.experiments.games.run import Games
from ewc_paper.games.arms import ALONE, ARMS, PROTECTED, RANDOM, SINGLE


def test_the_arms_are_those_of_the_experiment() -> None:
    assert Games.preset("quick").arms == tuple(ARMS)
    assert {SINGLE, RANDOM} == set(ALONE) < set(ARMS)


def test_two_arms_are_protected_and_one_of_them_recognizes_its_tasks() -> None:
    assert PROTECTED == ("ewc-labels", "ewc-fmn")
    assert [name for name, arm in ARMS.items() if arm.recognizes] == ["ewc-fmn"]


def test_titles_differ() -> None:
    assert len({arm.title for arm in ARMS.values()}) == len(ARMS)
