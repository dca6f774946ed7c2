"""Drift on stored states against a loop over them."""

import numpy as np
import pytest
import torch
from support.acting import ACTIONS, STATE_SHAPE, make_agent, make_transitions

from ewc_paper.games.agent import Agent
from ewc_paper.games.landmarks import LANDMARK_STATES, Landmark, Landmarks
from ewc_paper.games.replay import Replay, ReplayRow


def make_landmark(agent: Agent, count: int = 50) -> Landmark:
    states = torch.from_numpy(make_transitions(count=count).states)
    return Landmark(states, agent.action_values(states), agent.context)


def make_replay(rows: int = 20) -> Replay:
    random, replay = np.random.default_rng(0), Replay(1000, 2, STATE_SHAPE, history=1)
    for _ in range(rows):
        frames = random.integers(0, 256, (2, *STATE_SHAPE), dtype=np.uint8)
        flags = np.zeros(2, bool)
        actions, rewards = np.zeros(2, np.int64), np.zeros(2, np.float32)
        replay.append(ReplayRow(frames, actions, rewards, flags, flags, flags))
    return replay


def test_drift_is_the_agreement_and_the_stored_value_lost_by_todays_greedy_action() -> None:
    agent = make_agent(optimizer="adam", lr=1e-2)
    landmark = make_landmark(agent)
    assert landmark.drift(agent) == (1.0, 0.0)
    for seed in range(20):
        agent.learn(make_transitions(seed))
    agreement, regret = landmark.drift(agent)
    chosen = agent.action_values(landmark.states).argmax(1).tolist()
    stored = landmark.values.tolist()
    same = [
        c == max(range(ACTIONS), key=row.__getitem__) for c, row in zip(chosen, stored, strict=True)
    ]
    lost = [max(row) - row[c] for c, row in zip(chosen, stored, strict=True)]
    assert agreement == pytest.approx(sum(same) / 50)
    assert regret == pytest.approx(sum(lost) / 50, rel=1e-5)
    assert regret > 0


def test_drift_is_measured_in_the_context_of_the_landmark() -> None:
    agent = make_agent()
    landmark = make_landmark(agent)
    agent.enter(1)
    with torch.no_grad():
        for gain in agent.network.contexts[1].gains:
            gain.mul_(-1)  # other values in the new context, the same in the old
    assert landmark.drift(agent) == (1.0, 0.0)
    assert agent.context == 1


def test_a_game_left_again_has_the_landmark_of_the_last_time() -> None:
    agent, landmarks, replay = make_agent(optimizer="adam", lr=1e-2), Landmarks(), make_replay()
    assert landmarks.drift(agent) == {}
    landmarks.store("Pong", agent, replay, 0)
    landmarks.store("Boxing", agent, replay, 0)
    for seed in range(20):
        agent.learn(make_transitions(seed))
    landmarks.store("Pong", agent, replay, 0)
    drift = landmarks.drift(agent)
    assert list(drift) == ["Pong", "Boxing"]
    assert drift["Pong"] == (1.0, 0.0)
    assert drift["Boxing"].regret > 0


def test_states_are_valued_in_the_context_that_their_replay_memory_belongs_to() -> None:
    agent, landmarks, replay = make_agent(), Landmarks(), make_replay()
    agent.enter(1)
    with torch.no_grad():
        for bias in agent.network.contexts[1].biases:
            bias.normal_(generator=torch.Generator().manual_seed(0))
    agent.enter(0)  # another context than the one of the replay memory
    landmarks.store("Pong", agent, replay, 1)
    assert agent.context == 0
    stored = landmarks.state_dict()["Pong"]
    assert stored["context"] == 1
    agent.act_in(1)
    assert torch.equal(stored["values"], agent.action_values(stored["states"]))
    agent.act_in(0)
    assert not torch.allclose(stored["values"], agent.action_values(stored["states"]))
    assert landmarks.drift(agent)["Pong"] == (1.0, 0.0)


def test_the_state_holds_all_landmarks() -> None:
    agent, landmarks, again = make_agent(), Landmarks(), Landmarks()
    landmarks.store("Pong", agent, make_replay(), 0)
    again.load_state_dict(landmarks.state_dict())
    assert again.drift(agent) == landmarks.drift(agent)
    assert len(again.state_dict()["Pong"]["states"]) == LANDMARK_STATES
