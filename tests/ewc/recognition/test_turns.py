"""Which tasks are merged because they take turns faster than tasks change."""

import pytest

from ewc.recognition.turns import Turns

Plan = list[tuple[int, int]]  # tasks and for how many observations each is reported


def merges(turns: Turns, plan: Plan) -> Plan:
    """Observe tasks, and merge as asked."""
    found: Plan = []
    for task, observations in plan:
        for _ in range(observations):
            pair = turns.observe(dict(found).get(task, task))
            if pair is not None:
                found.append(pair)
                turns.merge(*pair)
    return found


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ([(0, 50), (1, 50), (0, 50), (1, 50)], []),  # visits
        ([(0, 500), (1, 20), (0, 500)], [(1, 0)]),  # too short for a visit
        ([(1, 500), (0, 20), (1, 500)], [(1, 0)]),  # the younger task is the one that goes
        ([(0, 20), (1, 500), (0, 20), (1, 500)], [(1, 0)]),  # a scene at the start of each episode
        ([(0, 500), (1, 5), (0, 500)], []),  # may be a mistake
        ([(0, 500), *[(1, 5), (0, 5)] * 50], []),  # the same many times
        ([(0, 500), (1, 20), (0, 5), (1, 500), (0, 500)], []),  # a mistake soon after a change
        ([(0, 500), (1, 20), (2, 500), (0, 500)], []),  # left for another
        ([(0, 500), (1, 20), (0, 20), (2, 50), (1, 50), (0, 50)], [(1, 0)]),  # once is enough
        ([(0, 50), (1, 20), (0, 20), (2, 20), (0, 20)], [(1, 0), (2, 0)]),
    ],
)
def test_tasks_that_take_turns_are_merged(plan: Plan, expected: Plan) -> None:
    assert merges(Turns(32), plan) == expected


def test_a_visit_of_the_shortest_length_is_a_visit() -> None:
    assert merges(Turns(32), [(0, 50), (1, 32), (0, 50)]) == []
    assert merges(Turns(32), [(0, 50), (1, 31), (0, 50)]) == [(1, 0)]


def test_nothing_is_merged_without_a_shortest_visit() -> None:
    assert merges(Turns(0), [(0, 9), (1, 9)] * 20) == []


def test_the_task_before_is_known_by_its_new_number() -> None:
    turns = Turns(32)
    merges(turns, [(2, 50), (1, 20)])
    turns.merge(2, 0)
    assert merges(turns, [(0, 50)]) == [(1, 0)]


@pytest.mark.parametrize("observed", [0, 5, 55, 65, 75, 90])
def test_it_goes_on_from_its_state(observed: int) -> None:
    first, second = Turns(32), Turns(32)
    plan = [0] * 50 + [1] * 20 + [0] * 50
    merges(first, [(task, 1) for task in plan[:observed]])
    second.load_state_dict(first.state_dict())
    rest = [(task, 1) for task in [*plan[observed:], *[2] * 20, *[0] * 50]]
    assert merges(first, rest) == merges(second, rest) != []
    assert second.state_dict() == first.state_dict()
