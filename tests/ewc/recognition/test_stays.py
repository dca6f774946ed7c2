"""Which tasks are merged because they follow each other too quickly."""

import pytest

from ewc.recognition.stays import Stays


def merges(stays: Stays, *plan: tuple[int, int]) -> list[tuple[int, int]]:
    """Observe tasks for some observations each, and do what is asked for."""
    found = []
    for task, observations in plan:
        for _ in range(observations):
            pair = stays.observe(task)
            if pair is not None:
                found.append(pair)
                stays.merge(*pair)
                task = pair[1] if task == pair[0] else task
    return found


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ([(0, 50), (1, 50), (2, 50), (0, 50)], []),  # visits
        ([(0, 50), (1, 10), (0, 50)], [(1, 0)]),  # there and back
        ([(0, 50), (1, 2), (0, 50)], []),  # too short to be a stay
        ([(0, 50), (1, 10), (2, 50)], []),  # it might be of either
        ([(0, 50), (1, 10), (2, 10), (3, 50)], [(2, 1)]),  # two short ones in a row
        ([(0, 50), (1, 10), (2, 10), (1, 10), (3, 10), (1, 50)], [(2, 1), (3, 1)]),
    ],
)
def test_short_stays_are_merged(
    plan: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> None:
    assert merges(Stays(shortest=30, dwell=4, repeats=3), *plan) == expected


def test_tasks_that_were_visited_for_long_are_merged_after_several_short_stays() -> None:
    visits = [(0, 50), (1, 50), (0, 50)]
    there_and_back = [(1, 10), (0, 50)]
    stays = Stays(shortest=30, dwell=4, repeats=3)
    assert merges(stays, *visits, *there_and_back, *there_and_back) == []
    assert merges(stays, *there_and_back) == [(1, 0)]


def test_nothing_is_merged_without_a_shortest_visit() -> None:
    assert merges(Stays(shortest=0, dwell=4, repeats=1), *[(0, 9), (1, 9)] * 20) == []


def test_it_goes_on_from_its_state() -> None:
    plan = [(0, 50), (1, 50), (0, 50), (1, 10), (0, 50), (1, 10), (0, 2)]
    first, second = Stays(30, 4, 3), Stays(30, 4, 3)
    merges(first, *plan)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    rest = [(0, 50), (1, 10), (0, 50), (2, 5), (0, 9)]
    assert merges(first, *rest) == merges(second, *rest) != []
    assert second.state_dict() == first.state_dict()
