"""Rows of measurements: what they say, and that none is lost or reported twice."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.acting import STATE_SHAPE, make_agent, make_transitions

from ewc_paper.games.agent import Agent
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.contexts import Recognize
from ewc_paper.games.measurements import Measurements
from ewc_paper.games.replay import Replay, ReplayRow
from ewc_paper.games.scores import normalized
from ewc_paper.games.segment_clock import SegmentClock

BREAKOUT, INVADERS = "minatar/breakout", "minatar/space_invaders"
CONFIG = AgentConfig(history=1, test_episodes=2, table_episodes=4, max_episode_steps=10)


def make(agent: Agent | None = None) -> tuple[SegmentClock, Measurements]:
    clock = SegmentClock([BREAKOUT, INVADERS], segment_steps=8, copies=4)
    agent = make_agent(optimizer="adam", lr=1e-2) if agent is None else agent
    return clock, Measurements(clock, agent, [BREAKOUT, INVADERS], CONFIG, seed=0)


def context_zero(game: str) -> Recognize:
    return lambda frame: 0


def make_replay(seed: int = 0) -> Replay:
    replay, flags = Replay(100, 1, STATE_SHAPE, history=1), np.zeros(1, bool)
    for state in make_transitions(seed, count=20).states:
        actions, rewards = np.zeros(1, np.int64), np.zeros(1, np.float32)
        replay.append(ReplayRow(state[None], actions, rewards, flags, flags, flags))
    return replay


def test_a_row_of_training_says_where_the_run_is() -> None:
    clock, measurements = make()
    clock.tick()
    clock.tick()
    clock.next_segment()
    clock.tick()
    measurements.statistics.count(0, 12, [3.0], epsilon=0.5)
    measurements.record_training()
    (row,) = measurements.waiting_rows()
    assert row == {
        "kind": "train",
        "step": 12,
        "segment": 1,
        "game": INVADERS,
        "steps_in_game": 4,
        "context": 0,
        "score": 3.0,
        "episodes": 1,
        "loss": None,
        "epsilon": 0.5,
        "recognized": {"0": 12},
    }


def test_a_row_of_a_consolidation_has_the_fisher_s_trace() -> None:
    clock, measurements = make()
    clock.tick()
    fisher = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[4.0]])}
    measurements.record_consolidation(fisher)
    assert list(measurements.waiting_rows()) == [
        {
            "kind": "fisher",
            "step": 4,
            "context": 0,
            "trace": 7.0,
            "largest": 4.0,
            "wells": 0,
        }
    ]


def test_rows_are_reported_once_and_in_order() -> None:
    _, measurements = make()
    measurements.record_consolidation({"a": torch.ones(1)})
    measurements.record_training()
    assert [row["kind"] for row in measurements.waiting_rows()] == ["fisher", "train"]
    assert list(measurements.waiting_rows()) == []


def test_rows_that_still_wait_are_part_of_the_state() -> None:
    _, first = make()
    _, second = make()
    first.record_consolidation({"a": torch.ones(1)})
    first.record_training()
    reported = next(first.waiting_rows())
    second.load_state_dict(first.state_dict())
    assert reported["kind"] == "fisher"
    assert [row["kind"] for row in second.waiting_rows()] == ["train"]


def test_a_test_has_the_scores_of_all_games_and_the_drift_on_those_left() -> None:
    clock, measurements = make()
    assert measurements.tests == 0
    row = measurements.test(context_zero)
    assert (row["kind"], row["step"], row["segment"], row["game"]) == ("test", 0, 0, None)
    assert row["agreement"] == row["regret"] == {}
    assert measurements.tests == 1
    clock.tick()
    clock.tick()
    measurements.statistics.count(0, 8, [], epsilon=0.5)
    measurements.store_landmark({0: make_replay()})
    clock.next_segment()
    row = measurements.test(context_zero)
    assert (row["step"], row["segment"], row["game"]) == (8, 1, BREAKOUT)
    assert row["steps_in"] == {BREAKOUT: 8, INVADERS: 0}
    assert (row["agreement"], row["regret"]) == ({BREAKOUT: 1.0}, {BREAKOUT: 0.0})
    assert all(list(contexts) == ["0"] for contexts in row["recognized"].values())
    assert 4 <= row["recognized"][BREAKOUT]["0"] <= 40  # four episodes of at most ten steps
    for game, scores in row["scores"].items():
        assert len(scores) == (4 if game == BREAKOUT else 2)
        assert row["normalized"][game] == pytest.approx(normalized(game, np.mean(scores)))
    assert json.dumps(row)


def test_a_landmark_is_of_the_context_that_most_of_the_segment_was_played_in() -> None:
    """The last window of a segment may be recognized as another game."""
    agent = make_agent()
    agent.enter(1)
    _, measurements = make(agent)
    for context, steps in ((1, 8), (0, 80), (2, 800), (1, 8)):  # 2 has no replay memory
        measurements.statistics.count(context, steps, [], epsilon=0.5)
    own, other = make_replay(), make_replay(seed=1)
    measurements.store_landmark({0: own, 1: other})
    (landmark,) = measurements.state_dict()["landmarks"].values()
    assert landmark["context"] == 0
    assert np.array_equal(landmark["states"], own.spread_states(len(landmark["states"])))
    measurements.statistics.count(1, 8, [], epsilon=0.5)  # in the next segment
    measurements.store_landmark({0: own, 1: other})
    (landmark,) = measurements.state_dict()["landmarks"].values()
    assert landmark["context"] == 1


def test_a_segment_without_a_replay_memory_has_no_landmark() -> None:
    _, measurements = make()
    measurements.statistics.count(3, 8, [], epsilon=0.5)
    measurements.store_landmark({})
    assert measurements.state_dict()["landmarks"] == {}


def test_more_episodes_are_played_where_a_table_needs_them() -> None:
    """Of the game just left, of one about to return, and of all at the end."""
    rotated = f"{BREAKOUT}:rotate90"
    schedule = [rotated, BREAKOUT, INVADERS, rotated, BREAKOUT]
    clock, agent = SegmentClock(schedule, segment_steps=8, copies=4), make_agent()
    games = [BREAKOUT, INVADERS, rotated]
    measurements = Measurements(clock, agent, games, CONFIG, seed=0)
    counts = []
    for _ in range(len(schedule) + 1):
        scores = measurements.test(context_zero)["scores"]
        counts.append([len(scores[game]) for game in games])
        clock.next_segment()
    assert counts == [[2, 2, 2], [2, 2, 4], [4, 2, 2], [2, 4, 4], [4, 2, 4], [4, 4, 4]]


def test_landmarks_and_tests_use_the_average_of_the_parameters() -> None:
    agent = make_agent(optimizer="adam", lr=1e-2, average_span=100)
    _, measurements = make(agent)
    for seed in range(20):
        agent.learn(make_transitions(seed))
    measurements.statistics.count(0, 8, [], epsilon=0.5)
    measurements.store_landmark({0: make_replay()})
    assert measurements.test(context_zero)["regret"] == {BREAKOUT: 0.0}
    agent.adopt_average()  # what the landmark was stored with
    assert measurements.test(context_zero)["regret"] == {BREAKOUT: 0.0}


def test_landmarks_and_the_number_of_tests_are_part_of_the_state() -> None:
    agent = make_agent(optimizer="adam", lr=1e-2)
    (_, first), (_, second) = make(agent), make(agent)
    first.statistics.count(0, 8, [], epsilon=0.5)
    first.store_landmark({0: make_replay()})
    first.test(context_zero)
    for seed in range(20):
        agent.learn(make_transitions(seed))
    second.load_state_dict(first.state_dict())
    assert second.tests == 1
    row = second.test(context_zero)
    assert row == first.test(context_zero)
    assert row["regret"][BREAKOUT] > 0


def test_clips_are_stored_at_the_last_test_alone(tmp_path: Path) -> None:
    clock, measurements = make()
    measurements.directory = tmp_path
    measurements.test(context_zero)
    assert not (tmp_path / "clips").exists()
    clock.next_segment()
    clock.next_segment()
    measurements.test(context_zero)
    assert len(list((tmp_path / "clips").iterdir())) == 2
