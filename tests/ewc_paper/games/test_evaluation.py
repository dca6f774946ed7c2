"""Measurements of an agent: scores, episodes to their end, rows neither lost nor doubled."""

import json
from pathlib import Path
from typing import Any

import ale_py
import gymnasium
import numpy as np
import pytest
import torch
from support.games import ACTIONS, STATE_SHAPE, CountingGame, make_agent, make_transitions
from support.runs import run_through

from ewc_paper.errors import Interrupted
from ewc_paper.games import evaluation, scores
from ewc_paper.games.agent import Agent
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.contexts import ContextTracker, Recognize
from ewc_paper.games.evaluation import (
    AT_ONCE,
    CLIP_FRAMES,
    LANDMARK_STATES,
    RANDOM_EPISODES,
    Episodes,
    Evaluation,
    Landmark,
    Landmarks,
    Measurements,
    RandomMeasurement,
    RandomPlayer,
    TrainingStatistics,
    make_random,
    play_episodes,
    write_clip,
)
from ewc_paper.games.replay import Replay, ReplayRow
from ewc_paper.games.schedule import SegmentClock
from ewc_paper.games.scores import ATARI_SCORES, normalized
from ewc_paper.games.worlds import minatar
from ewc_paper.games.worlds.game import Frame, Game, GameStep, file_name, make_game
from ewc_paper.runs.directory import RunDirectory


def test_random_is_zero_and_human_is_one() -> None:
    for name, (random, human) in ATARI_SCORES.items():
        assert normalized(name, random) == 0
        assert normalized(name, human) == 1
    assert normalized("Breakout", 16.1) == pytest.approx((16.1 - 1.7) / (30.5 - 1.7))
    assert normalized("Pong", -21) < 0 < 1 < normalized("Pong", 21)


def test_the_table_holds_57_games_of_the_emulator_and_the_human_is_better() -> None:
    gymnasium.register_envs(ale_py)
    known = {spec.name for spec in gymnasium.registry.values() if spec.namespace == "ALE"}
    assert len(ATARI_SCORES) == 57
    assert ATARI_SCORES.keys() <= known
    assert all(random < human for random, human in ATARI_SCORES.values())


@pytest.mark.parametrize(("name", "near"), [("UpnDown", "UpNDown"), ("pong", "Pong")])
def test_an_unknown_game_is_refused_with_those_of_like_name(name: str, near: str) -> None:
    with pytest.raises(ValueError, match=rf"no human score is known for {name}.*{near}"):
        normalized(name, 1.0)


def test_a_game_without_a_human_score_is_refused() -> None:
    with pytest.raises(ValueError, match="no human score is known for Tetris"):
        normalized("Tetris", 1.0)


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "minatar_scores.json"
    file.write_text(
        json.dumps(
            {
                "breakout": {"random": 0.5, "reference": 8.5},
                "asterix": {"random": 0.5, "reference": None},
            }
        )
    )
    monkeypatch.setattr(scores, "MINATAR_FILE", file)


@pytest.mark.usefixtures("stored")
def test_a_minatar_task_is_scored_as_its_game() -> None:
    assert normalized("minatar/breakout", 4.5) == 0.5
    assert normalized("minatar/breakout:mirror,actions1,channels1", 4.5) == 0.5


@pytest.mark.usefixtures("stored")
def test_a_minatar_game_without_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="no reference score is stored for minatar/asterix"):
        normalized("minatar/asterix:flip", 1.0)


def test_an_unknown_minatar_game_is_refused() -> None:
    with pytest.raises(ValueError, match="no task is called minatar/pong"):
        normalized("minatar/pong", 1.0)


def test_every_minatar_game_is_stored() -> None:
    stored = json.loads(scores.MINATAR_FILE.read_text())
    assert stored.keys() == set(minatar.GAMES)
    for game in stored.values():
        assert game.keys() == {"random", "reference"}
        assert game["reference"] is None or game["reference"] > game["random"] > 0


def play(agent: Any, games: list[Any], recognizers: list[Recognize], epsilon: float) -> Episodes:
    return play_episodes(agent, games, recognizers, history=1, epsilon=epsilon, seed=5)


def always(context: int) -> Recognize:
    return lambda frame: context


def test_every_copy_is_played_to_its_own_end_once() -> None:
    agent = make_agent()
    games = [CountingGame(3), CountingGame(7, truncated=True), CountingGame(1)]
    before = {name: w.clone() for name, w in agent.network.state_dict().items()}
    played = play(agent, games, [always(0)] * 3, epsilon=0.1)
    assert played.scores == [4.0, 8.0, 2.0]
    assert [len(game.seeds) for game in games] == [1, 1, 1]
    assert len({game.seeds[0] for game in games}) == 3
    assert [int(frame.max()) for frame in played.first_frames] == [0, 1, 2, 3]
    assert all(torch.equal(w, before[name]) for name, w in agent.network.state_dict().items())


def test_the_context_is_the_recognized_one_during_the_test_only() -> None:
    agent = make_agent()
    agent.add_context()
    seen = []

    def recognize(frame: Frame) -> int:
        seen.append(agent.context)
        return 1

    play(agent, [CountingGame(3)], [recognize], epsilon=0)
    assert seen == [0, 1, 1]
    assert agent.context == 0


def test_every_recognizer_sees_all_frames_of_its_own_copy() -> None:
    agent, games = make_agent(), [CountingGame(2), CountingGame(4)]
    seen: list[list[int]] = [[], []]

    def recognize_for(copy: int) -> Recognize:
        def recognize(frame: Frame) -> int:
            seen[copy].append(int(frame.max()))
            return 0

        return recognize

    play(agent, games, [recognize_for(0), recognize_for(1)], epsilon=0)
    assert seen == [[0, 1], [0, 1, 2, 3]]
    assert games[1].steps == 4


class NotingGame(CountingGame):
    """Notes the actions that it was given."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.actions: list[int] = []

    def step(self, action: int) -> GameStep:
        self.actions.append(action)
        return super().step(action)


def agent_with_a_favorite_per_context(contexts: int) -> Agent:
    """Its greedy action in context c is c."""
    agent = make_agent()
    for context in range(contexts):
        agent.enter(context)
        with torch.no_grad():
            last = agent.network.contexts[context].biases[-1]
            last[context] = 1e3
            assert len(last) == ACTIONS
    agent.enter(0)
    return agent


def test_every_copy_acts_in_its_own_context_with_one_pass_per_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent, games = agent_with_a_favorite_per_context(3), [NotingGame(3) for _ in range(4)]
    passes: list[tuple[int, int]] = []
    act = agent.act

    def counted(states: Any, epsilon: float, random: Any) -> Any:
        passes.append((agent.context, len(states)))
        return act(states, epsilon, random)

    monkeypatch.setattr(agent, "act", counted)

    def changing(frame: Frame) -> int:  # its context changes within the episode
        return 1 if frame.max() < 2 else 2

    played = play(agent, games, [always(2), changing, always(2), always(0)], epsilon=0)
    assert [game.actions for game in games] == [[2, 2, 2], [1, 1, 2], [2, 2, 2], [0, 0, 0]]
    assert passes == [(0, 1), (1, 1), (2, 2)] * 2 + [(0, 1), (2, 3)]
    assert played.recognized == {"2": 7, "1": 2, "0": 3}


def test_copies_in_one_context_act_as_in_a_single_pass() -> None:
    """So tests of agents that are told the game do not depend on how contexts are grouped."""
    agent, games = make_agent(), [NotingGame(5) for _ in range(3)]
    play(agent, games, [always(0)] * 3, epsilon=0.5)
    explored = np.array([game.actions for game in games])
    again = [NotingGame(5) for _ in range(3)]
    play(agent, again, [always(0)] * 3, epsilon=0.5)
    assert np.array_equal(explored, [game.actions for game in again])
    assert len(np.unique(explored)) > 1


GAMES = ["minatar/asterix", "minatar/seaquest"]
TESTED = AgentConfig(history=1, max_episode_steps=200, test_epsilon=0.9)


def make_evaluation() -> Evaluation:
    return Evaluation(TESTED, seed=0)


def test_scores_depend_on_the_seed_and_the_number_of_the_test_alone(tmp_path: Path) -> None:
    agent, made, game = make_agent(), make_evaluation(), GAMES[0]
    first = made.play(agent, game, [always(0)] * 3, test=1)
    made.play(agent, GAMES[1], [always(0)] * 3, test=1)
    other = made.play(agent, game, [always(0)] * 3, test=2)
    again = made.play(agent, game, [always(0)] * 3, test=1, clip_in=tmp_path)
    fresh = make_evaluation().play(agent, game, [always(0)] * 3, test=1)
    assert again.scores == fresh.scores == first.scores
    assert other.scores != first.scores


def test_each_episode_is_recognized_in_its_own_way() -> None:
    agent = make_agent()
    agent.add_context()
    played = make_evaluation().play(agent, GAMES[0], [always(1), always(0), always(1)], test=0)
    assert len(played.scores) == 3
    assert set(played.recognized) == {"0", "1"}
    assert agent.context == 0


def test_a_clip_is_stored_if_wanted(tmp_path: Path) -> None:
    made = make_evaluation()
    made.play(make_agent(), GAMES[0], [always(0)], test=0, clip_in=tmp_path / "clips")
    made.play(make_agent(), GAMES[1], [always(0)], test=0)
    names = [file.name for file in (tmp_path / "clips").iterdir()]
    assert names == ["minatar-asterix.npz"]
    assert np.load(tmp_path / "clips" / names[0])["frames"].shape[1:] == (10, 10)


def test_games_are_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def counted(name: str, *options: Any) -> Game:
        loaded.append(name)
        return make_game(name, *options)

    monkeypatch.setattr(evaluation, "make_game", counted)
    made = make_evaluation()
    for test, count in enumerate((2, 3, 1)):
        for game in GAMES:
            made.play(make_agent(), game, [always(0)] * count, test=test)
    assert {game: loaded.count(game) for game in GAMES} == dict.fromkeys(GAMES, 3)


def read_clip(file: Path) -> np.ndarray:
    with np.load(file) as stored:
        return stored["frames"]


def test_a_clip_keeps_every_pixel_that_was_lit(tmp_path: Path) -> None:
    frames = [np.zeros((2, 3, 3), np.uint8) for _ in range(4)]
    frames[1][0, 0, 0] = 255
    frames[2][1, 1, 1] = 255
    write_clip(tmp_path / "clips", "minatar/breakout:rotate90", frames)
    clip = read_clip(tmp_path / "clips" / "minatar-breakout-rotate90.npz")
    assert clip.shape == (4, 3, 3)
    assert clip.dtype == np.uint8
    assert np.argwhere(clip).tolist() == [[1, 0, 0], [2, 1, 1]]
    assert clip[2, 1, 1] == 255


def test_a_long_episode_is_shortened(tmp_path: Path) -> None:
    write_clip(tmp_path, "Pong", [np.zeros((1, 2, 2), np.uint8)] * (CLIP_FRAMES + 5))
    assert len(read_clip(tmp_path / "Pong.npz")) == CLIP_FRAMES


GAME = "minatar/space_invaders"


def random_config(**settings: Any) -> dict[str, Any]:
    given = {"history": 1, "max_episode_steps": 40, "test_epsilon": 0.0, **settings}
    return {"arm": "random", "seed": 3, "games": [GAME], "schedule": [], "settings": given}


def rows_of(measurement: RandomMeasurement) -> list[dict[str, Any]]:
    return [row for row in measurement.run() if row]


def test_random_actions_are_uniform_whatever_the_state_and_epsilon() -> None:
    player, states = RandomPlayer(6), np.zeros((6000, *STATE_SHAPE), np.uint8)
    actions = player.act(states, 0.0, np.random.default_rng(0))
    assert np.bincount(actions) == pytest.approx([1000] * 6, rel=0.1)


def test_the_row_of_a_random_player_is_that_of_a_test_with_enough_episodes() -> None:
    (row,) = rows_of(make_random(random_config()))
    assert (row["kind"], row["step"], row["segment"], row["game"]) == ("test", 0, 0, None)
    assert len(row["scores"][GAME]) == RANDOM_EPISODES
    assert row["normalized"] == {GAME: normalized(GAME, np.mean(row["scores"][GAME]))}
    assert json.dumps(row)
    (row,) = rows_of(make_random(random_config(table_episodes=123)))
    assert len(row["scores"][GAME]) == 123


def test_the_mean_of_a_random_player_is_that_of_a_plain_loop() -> None:
    (row,) = rows_of(make_random(random_config(table_episodes=400)))
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


def test_seeds_of_a_random_player_differ_and_the_same_seed_is_the_same() -> None:
    first, again, other = (make_random({**random_config(), "seed": seed}) for seed in (3, 3, 4))
    assert rows_of(first) == rows_of(again) != rows_of(other)


@pytest.mark.parametrize("pieces", [0, 1, 4, RANDOM_EPISODES // AT_ONCE + 1])
def test_a_random_player_stopped_after_any_piece_ends_the_same(pieces: int) -> None:
    whole = rows_of(make_random(random_config()))
    first, second = make_random(random_config()), make_random(random_config())
    running = first.run()
    before = [next(running) for _ in range(pieces)]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.progress == first.progress == min(1.0, pieces * AT_ONCE / RANDOM_EPISODES)
    assert [row for row in before if row] + rows_of(second) == whole


def test_a_random_player_that_is_interrupted_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    whole, stopped = RunDirectory(tmp_path / "whole"), RunDirectory(tmp_path / "stopped")
    for run in (whole, stopped):
        run.start(random_config())
    run_through(make_random(random_config()), whole)
    moments = iter([False, False, True, False, True, *[False] * 20])
    for _ in range(2):
        with pytest.raises(Interrupted):
            run_through(make_random(random_config()), stopped, stop=lambda: next(moments))
    run_through(make_random(random_config()), stopped, stop=lambda: next(moments))
    assert stopped.finished()
    assert stopped.rows() == whole.rows()


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


def test_the_state_of_landmarks_holds_all_of_them() -> None:
    agent, landmarks, again = make_agent(), Landmarks(), Landmarks()
    landmarks.store("Pong", agent, make_replay(), 0)
    again.load_state_dict(landmarks.state_dict())
    assert again.drift(agent) == landmarks.drift(agent)
    assert len(again.state_dict()["Pong"]["states"]) == LANDMARK_STATES


def test_a_row_of_training_has_the_means_since_the_last_one() -> None:
    statistics = TrainingStatistics()
    statistics.count(0, 4, [1.0], epsilon=0.9)
    statistics.count(1, 4, [], epsilon=0.8)
    statistics.count(1, 4, [2.0, 6.0], epsilon=0.7)
    statistics.losses += [0.5, 1.5]
    assert statistics.take() == {
        "score": 3.0,
        "episodes": 3,
        "loss": 1.0,
        "epsilon": 0.7,
        "recognized": {"0": 4, "1": 8},
    }
    assert statistics.take() == {
        "score": None,
        "episodes": 0,
        "loss": None,
        "epsilon": 0.7,  # the last one known
        "recognized": {},
    }


def test_a_segment_has_the_contexts_that_it_was_played_in_the_most_frequent_first() -> None:
    statistics = TrainingStatistics()
    for context, steps in ((3, 4), (1, 8), (2, 6), (3, 1)):
        statistics.count(context, steps, [], epsilon=0.5)
        statistics.take()  # rows of training do not end a segment
    assert statistics.end_segment() == [1, 2, 3]
    assert statistics.end_segment() == []


def test_the_state_of_statistics_is_plain_and_continues_in_another() -> None:
    first, second = TrainingStatistics(), TrainingStatistics()
    first.count(2, 4, [1.0], epsilon=0.5)
    first.losses.append(0.25)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second == first
    assert second.take() == first.take()


BREAKOUT, INVADERS = "minatar/breakout", "minatar/space_invaders"
MEASURED = AgentConfig(history=1, test_episodes=2, table_episodes=4, max_episode_steps=10)


def make_measurements(agent: Agent | None = None) -> tuple[SegmentClock, Measurements]:
    clock = SegmentClock([BREAKOUT, INVADERS], segment_steps=8, copies=4)
    agent = make_agent(optimizer="adam", lr=1e-2) if agent is None else agent
    return clock, Measurements(
        clock, agent, ContextTracker(None), [BREAKOUT, INVADERS], MEASURED, seed=0
    )


def replay_of_transitions(seed: int = 0) -> Replay:
    replay, flags = Replay(100, 1, STATE_SHAPE, history=1), np.zeros(1, bool)
    for state in make_transitions(seed, count=20).states:
        actions, rewards = np.zeros(1, np.int64), np.zeros(1, np.float32)
        replay.append(ReplayRow(state[None], actions, rewards, flags, flags, flags))
    return replay


def test_a_row_of_training_says_where_the_run_is() -> None:
    clock, measurements = make_measurements()
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
    clock, measurements = make_measurements()
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
    _, measurements = make_measurements()
    measurements.record_consolidation({"a": torch.ones(1)})
    measurements.record_training()
    assert [row["kind"] for row in measurements.waiting_rows()] == ["fisher", "train"]
    assert list(measurements.waiting_rows()) == []


def test_rows_that_still_wait_are_part_of_the_state() -> None:
    _, first = make_measurements()
    _, second = make_measurements()
    first.record_consolidation({"a": torch.ones(1)})
    first.record_training()
    reported = next(first.waiting_rows())
    second.load_state_dict(first.state_dict())
    assert reported["kind"] == "fisher"
    assert [row["kind"] for row in second.waiting_rows()] == ["train"]


def test_a_test_has_the_scores_of_all_games_and_the_drift_on_those_left() -> None:
    clock, measurements = make_measurements()
    assert measurements.tests == 0
    row = measurements.test()
    assert (row["kind"], row["step"], row["segment"], row["game"]) == ("test", 0, 0, None)
    assert row["agreement"] == row["regret"] == {}
    assert measurements.tests == 1
    clock.tick()
    clock.tick()
    measurements.statistics.count(0, 8, [], epsilon=0.5)
    measurements.store_landmark({0: replay_of_transitions()})
    clock.next_segment()
    row = measurements.test()
    assert (row["step"], row["segment"], row["game"]) == (8, 1, BREAKOUT)
    assert row["steps_in"] == {BREAKOUT: 8, INVADERS: 0}
    assert (row["agreement"], row["regret"]) == ({BREAKOUT: 1.0}, {BREAKOUT: 0.0})
    assert all(list(contexts) == ["0"] for contexts in row["recognized"].values())
    assert 4 <= row["recognized"][BREAKOUT]["0"] <= 40  # four episodes of at most ten steps
    for game, found in row["scores"].items():
        assert len(found) == (4 if game == BREAKOUT else 2)
        assert row["normalized"][game] == pytest.approx(normalized(game, np.mean(found)))
    assert json.dumps(row)


def test_a_landmark_is_of_the_context_that_most_of_the_segment_was_played_in() -> None:
    """The last window of a segment may be recognized as another game."""
    agent = make_agent()
    agent.enter(1)
    _, measurements = make_measurements(agent)
    for context, steps in ((1, 8), (0, 80), (2, 800), (1, 8)):  # 2 has no replay memory
        measurements.statistics.count(context, steps, [], epsilon=0.5)
    own, other = replay_of_transitions(), replay_of_transitions(seed=1)
    measurements.store_landmark({0: own, 1: other})
    (landmark,) = measurements.state_dict()["landmarks"].values()
    assert landmark["context"] == 0
    assert np.array_equal(landmark["states"], own.spread_states(len(landmark["states"])))
    measurements.statistics.count(1, 8, [], epsilon=0.5)  # in the next segment
    measurements.store_landmark({0: own, 1: other})
    (landmark,) = measurements.state_dict()["landmarks"].values()
    assert landmark["context"] == 1


def test_a_segment_without_a_replay_memory_has_no_landmark() -> None:
    _, measurements = make_measurements()
    measurements.statistics.count(3, 8, [], epsilon=0.5)
    measurements.store_landmark({})
    assert measurements.state_dict()["landmarks"] == {}


def test_more_episodes_are_played_where_a_table_needs_them() -> None:
    """Of the game just left, of one about to return, and of all at the end."""
    rotated = f"{BREAKOUT}:rotate90"
    schedule = [rotated, BREAKOUT, INVADERS, rotated, BREAKOUT]
    clock, agent = SegmentClock(schedule, segment_steps=8, copies=4), make_agent()
    games = [BREAKOUT, INVADERS, rotated]
    measurements = Measurements(clock, agent, ContextTracker(None), games, MEASURED, seed=0)
    counts = []
    for _ in range(len(schedule) + 1):
        scores = measurements.test()["scores"]
        counts.append([len(scores[game]) for game in games])
        clock.next_segment()
    assert counts == [[2, 2, 2], [2, 2, 4], [4, 2, 2], [2, 4, 4], [4, 2, 4], [4, 4, 4]]


def test_landmarks_and_tests_use_the_average_of_the_parameters() -> None:
    agent = make_agent(optimizer="adam", lr=1e-2, average_span=100)
    _, measurements = make_measurements(agent)
    for seed in range(20):
        agent.learn(make_transitions(seed))
    measurements.statistics.count(0, 8, [], epsilon=0.5)
    measurements.store_landmark({0: replay_of_transitions()})
    assert measurements.test()["regret"] == {BREAKOUT: 0.0}
    agent.adopt_average()  # what the landmark was stored with
    assert measurements.test()["regret"] == {BREAKOUT: 0.0}


def test_landmarks_and_the_number_of_tests_are_part_of_the_state() -> None:
    agent = make_agent(optimizer="adam", lr=1e-2)
    (_, first), (_, second) = make_measurements(agent), make_measurements(agent)
    first.statistics.count(0, 8, [], epsilon=0.5)
    first.store_landmark({0: replay_of_transitions()})
    first.test()
    for seed in range(20):
        agent.learn(make_transitions(seed))
    second.load_state_dict(first.state_dict())
    assert second.tests == 1
    row = second.test()
    assert row == first.test()
    assert row["regret"][BREAKOUT] > 0


def test_clips_are_of_the_untrained_agent_of_first_visits_and_of_the_end(tmp_path: Path) -> None:
    clock, measurements = make_measurements()
    measurements.directory = tmp_path
    stored: list[list[str]] = []
    for segment in range(3):
        if segment:
            clock.next_segment()
        before = set(tmp_path.rglob("*.npz"))
        measurements.test()
        new = set(tmp_path.rglob("*.npz")) - before
        stored.append(sorted(str(file.parent.relative_to(tmp_path)) for file in new))
    assert stored == [["clips/untrained"] * 2, ["clips/learned"], ["clips"] * 2]
    (learned,) = (tmp_path / "clips" / "learned").iterdir()
    assert learned.stem == file_name(clock.schedule[0])
