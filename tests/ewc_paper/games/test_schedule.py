"""Rounds are random permutations of the games, and no game is played twice in a row."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ewc_paper.games.schedule import segments


@given(st.integers(2, 8), st.integers(1, 6), st.integers(0, 2**63 - 1))
def test_every_round_plays_every_game_once(count: int, visits: int, seed: int) -> None:
    games = [f"game{number}" for number in range(count)]
    order = segments(games, visits, seed)
    assert len(order) == count * visits
    for start in range(0, len(order), count):
        assert sorted(order[start : start + count]) == games
    assert all(game != after for game, after in pairwise(order))
    assert order == segments(games, visits, seed)
    assert segments(games, visits + 1, seed)[: len(order)] == order


def test_all_orders_come_up_equally_often() -> None:
    counts = Counter(tuple(segments(["a", "b", "c"], 1, seed)) for seed in range(1200))
    assert len(counts) == 6
    assert all(140 < count < 260 for count in counts.values())  # 200 ± 4.6 standard deviations


def test_one_game_is_visited_once() -> None:
    assert segments(["Pong"], 1, 0) == ["Pong"]


@pytest.mark.parametrize("games", [["Pong"], ["Pong", "Krull", "Pong"], []])
def test_games_that_cannot_alternate_are_refused(games: list[str]) -> None:
    with pytest.raises(ValueError, match="expected different games"):
        segments(games, 2, 0)
