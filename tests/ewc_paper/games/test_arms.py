"""Which arm has what is known in one place, and every arm has a name for figures."""

from ewc_paper.experiments.games.run import Games
from ewc_paper.games.arms import ALONE, ARMS, PROTECTED, RANDOM, SINGLE


def test_the_arms_are_those_of_the_experiment() -> None:
    assert set(Games.preset("quick").arms) <= ARMS.keys()
    assert {SINGLE, RANDOM} == set(ALONE) < set(ARMS)


def test_what_is_in_the_name_of_an_arm_is_what_it_has() -> None:
    assert [name for name, arm in ARMS.items() if "ewc" in name] == list(PROTECTED)
    for name, arm in ARMS.items():
        assert arm.gated == ("gates" in name)
        assert arm.recognizes == ("fmn" in name)
        assert arm.protected == ("ewc" in name)


def test_the_paper_has_no_gates() -> None:
    assert not any(ARMS[arm].gated for arm in Games.preset("paper").arms)


def test_titles_differ() -> None:
    assert len({arm.title for arm in ARMS.values()}) == len(ARMS)
