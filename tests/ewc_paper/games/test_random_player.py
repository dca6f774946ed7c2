"""A random player is measured like an agent, in pieces that end the same after a stop."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.acting import STATE_SHAPE

from ewc_paper.errors import Interrupted
from ewc_paper.games.random_player import (
    AT_ONCE,
    RANDOM_EPISODES,
    RandomMeasurement,
    RandomPlayer,
    make_random,
)
from ewc_paper.games.scores import normalized
from ewc_paper.games.worlds.game import make_game
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.loop import carry_on

GAME = "minatar/space_invaders"


def config(**settings: Any) -> dict[str, Any]:
    given = {"history": 1, "max_episode_steps": 40, "test_epsilon": 0.0, **settings}
    return {"arm": "random", "seed": 3, "games": [GAME], "schedule": [], "settings": given}


def rows_of(measurement: RandomMeasurement) -> list[dict[str, Any]]:
    return [row for row in measurement.run() if row]


def test_actions_are_uniform_whatever_the_state_and_epsilon() -> None:
    player, states = RandomPlayer(6), np.zeros((6000, *STATE_SHAPE), np.uint8)
    actions = player.act(states, 0.0, np.random.default_rng(0))
    assert np.bincount(actions) == pytest.approx([1000] * 6, rel=0.1)


def test_the_row_is_that_of_a_test_with_enough_episodes() -> None:
    (row,) = rows_of(make_random(config()))
    assert (row["kind"], row["step"], row["segment"], row["game"]) == ("test", 0, 0, None)
    assert len(row["scores"][GAME]) == RANDOM_EPISODES
    assert row["normalized"] == {GAME: normalized(GAME, np.mean(row["scores"][GAME]))}
    assert json.dumps(row)
    (row,) = rows_of(make_random(config(table_episodes=123)))
    assert len(row["scores"][GAME]) == 123


def test_the_mean_is_that_of_a_plain_loop_of_random_actions() -> None:
    (row,) = rows_of(make_random(config(table_episodes=400)))
    random, game, scores = np.random.default_rng(1), make_game(GAME, 84, 40), []
    for seed in range(400):
        game.reset(seed)
        steps = [game.step(int(random.integers(game.num_actions)))]
        while not (steps[-1].terminal or steps[-1].truncated):
            steps.append(game.step(int(random.integers(game.num_actions))))
        scores.append(sum(step.reward for step in steps))
    error = np.hypot(np.std(scores), np.std(row["scores"][GAME])) / 400**0.5
    assert error > 0
    assert abs(np.mean(scores) - np.mean(row["scores"][GAME])) < 4 * error


def test_seeds_differ_and_the_same_seed_is_the_same() -> None:
    first, again, other = (make_random({**config(), "seed": seed}) for seed in (3, 3, 4))
    assert rows_of(first) == rows_of(again) != rows_of(other)


@pytest.mark.parametrize("pieces", [0, 1, 4, RANDOM_EPISODES // AT_ONCE + 1])
def test_stopped_after_any_piece_it_ends_the_same(pieces: int) -> None:
    whole = rows_of(make_random(config()))
    first, second = make_random(config()), make_random(config())
    running = first.run()
    before = [next(running) for _ in range(pieces)]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.progress == first.progress == min(1.0, pieces * AT_ONCE / RANDOM_EPISODES)
    assert [row for row in before if row] + rows_of(second) == whole


def test_a_run_that_is_interrupted_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    whole, stopped = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "stopped")
    for run in (whole, stopped):
        run.start(config())
    carry_on(make_random(config()), whole)
    moments = iter([False, False, True, False, True, *[False] * 20])
    for _ in range(2):
        with pytest.raises(Interrupted):
            carry_on(make_random(config()), stopped, stop=lambda: next(moments))
    carry_on(make_random(config()), stopped, stop=lambda: next(moments))
    assert stopped.finished()
    assert stopped.rows() == whole.rows()
