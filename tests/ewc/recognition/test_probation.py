"""Which new tasks are merged with another, and which pass their probation."""

import pytest

from ewc.recognition.probation import NONE, Probation

Plan = list[tuple[int, int]]  # tasks and for how many observations each is reported


def merges(probation: Probation, plan: Plan, known: set[int] | None = None) -> Plan:
    """Observe tasks, of which each begins its probation when it comes first; merge as asked."""
    found, before = [], NONE
    known = set() if known is None else known
    for task, observations in plan:
        if task not in known:
            probation.begin(task, before)
        known.add(task)
        for _ in range(observations):
            pair = probation.observe(dict(found).get(task, task))
            if pair is not None:
                found.append(pair)
                probation.merge(*pair)
        before = dict(found).get(task, task)
    return found


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ([(0, 50), (1, 50), (2, 50), (0, 50)], []),  # visits
        ([(0, 50), (1, 10), (0, 50)], [(1, 0)]),  # there and back
        ([(0, 50), *[(1, 1), (0, 3)] * 10], [(1, 0)]),  # one of four copies
        ([(0, 50), *[(1, 1), (0, 1)] * 20], [(1, 0)]),  # two of them
        ([(0, 50), *[(1, 9), (0, 1)] * 10], []),  # few mistakes in a new visit
        ([(0, 50), (1, 10), (2, 50)], [(2, 1)]),  # the first screen of a new game
        ([(0, 50), (1, 20), (2, 50)], [(2, 1)]),  # the same, even if it lasts for longer than that
        ([(0, 20), (1, 50)], [(1, 0)]),  # and if nothing came before
        ([(0, 50), (1, 35), (2, 50)], []),  # no screen lasts for as long as a visit
        ([(0, 50), (1, 50), (2, 20), (0, 50)], []),  # nothing new came after a short visit
        ([(0, 50), (1, 4), (0, 10), (2, 50)], [(1, 0)]),  # just before the game changed
        ([(0, 10), (1, 50)], [(1, 0)]),  # the first task has a probation, too
        ([(0, 50), (1, 2), (2, 2), (0, 50)], [(1, 0), (2, 0)]),
    ],
)
def test_a_new_task_that_is_soon_left_is_merged(plan: Plan, expected: Plan) -> None:
    assert merges(Probation(30), plan) == expected


def test_tasks_that_have_passed_are_never_merged() -> None:
    probation, known = Probation(30), set[int]()
    assert merges(probation, [(0, 50), (1, 50), (0, 50)], known) == []
    assert merges(probation, [(1, 1), (0, 3)] * 100, known) == []


def test_nothing_is_merged_without_a_shortest_visit() -> None:
    assert merges(Probation(0), [(0, 9), (1, 9)] * 20) == []


def test_merging_asks_for_no_further_merge_of_the_same_task() -> None:
    probation = Probation(30)
    assert merges(probation, [(0, 50), (1, 5), (2, 5), (1, 50)]) == [(2, 1)]
    assert probation.before == {}
    assert probation.reported == {}


@pytest.mark.parametrize("observed", [0, 3, 55, 60])
def test_it_goes_on_from_its_state(observed: int) -> None:
    first, second = Probation(30), Probation(30)
    known = set[int]()
    merges(first, [(0, min(observed, 50)), (1, max(0, observed - 50))], known)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    rest = [(0, 20), (2, 5), (0, 60)]
    assert merges(first, rest, set(known)) == merges(second, rest, set(known)) != []
    assert second.state_dict() == first.state_dict()
