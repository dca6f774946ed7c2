"""A context belongs to the game that was played in most of its steps."""

import pytest

from ewc_paper.experiments.context_match import ContextUse, match_contexts


def test_steps_in_contexts_of_other_games_are_wrong() -> None:
    uses = [
        ContextUse(0, "Pong", 60),
        ContextUse(0, "Krull", 30),
        ContextUse(0, "Pong", 10),
        ContextUse(1, "Krull", 95),
        ContextUse(1, "Pong", 5),
    ]
    match = match_contexts(uses)
    assert match is not None
    assert match.game_of == {0: "Pong", 1: "Krull"}
    assert match.correct == pytest.approx(1 - (30 + 5) / 200)


def test_a_game_may_have_several_contexts() -> None:
    match = match_contexts([ContextUse(0, "Pong", 2), ContextUse(1, "Pong", 1)])
    assert match is not None
    assert match.game_of == {0: "Pong", 1: "Pong"}
    assert match.correct == 1.0


def test_without_steps_there_is_nothing_to_match() -> None:
    assert match_contexts([]) is None
