"""Games in a row: their schedule, who is protected, what is recognized, runs that are killed."""

import copy
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
from collections import Counter
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.games import Merging
from support.runs import run_through
from torch import Tensor

from ewc.recognition import ForgetMeNot, ScreenRecognizer
from ewc_paper.errors import RunError
from ewc_paper.experiments.games.run import Games
from ewc_paper.games.contexts import ContextTracker, make_recognizer
from ewc_paper.games.replay import ReplayError
from ewc_paper.games.schedule import SegmentClock, segments
from ewc_paper.games.training import make_continual
from ewc_paper.games.worlds.game import RunningGame
from ewc_paper.runs.checkpoint import load_checkpoint
from ewc_paper.runs.directory import RunDirectory


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


SCHEDULE = ["Pong", "Boxing", "Pong"]


def make(segment_steps: int = 10, copies: int = 4) -> SegmentClock:
    return SegmentClock(SCHEDULE, segment_steps, copies)


def play_segment(clock: SegmentClock) -> None:
    while clock.rows_left:
        clock.tick()
    clock.next_segment()


def test_a_segment_has_whole_rows() -> None:
    clock = make(segment_steps=10, copies=4)
    assert clock.rows_left == clock.rows_per_segment == 3
    clock.tick()
    assert (clock.rows_left, clock.agent_steps) == (2, 4)


def test_segments_follow_the_schedule_until_it_is_over() -> None:
    clock, played = make(), []
    assert clock.previous_game is None
    while not clock.over:
        played.append(clock.game)
        play_segment(clock)
        assert clock.previous_game == played[-1]
    assert played == SCHEDULE
    assert clock.agent_steps == 3 * 3 * 4


def test_progress_goes_from_zero_to_one() -> None:
    clock, seen = make(), []
    while not clock.over:
        seen.append(clock.progress)
        clock.tick()
        if not clock.rows_left:
            assert clock.progress == (clock.segment + 1) / 3
            clock.next_segment()
    assert seen == sorted(seen)
    assert (seen[0], clock.progress) == (0, 1)


def test_steps_are_counted_by_game() -> None:
    clock = make()
    play_segment(clock)
    clock.tick()
    assert (clock.agent_steps_in("Pong"), clock.agent_steps_in("Boxing")) == (12, 4)
    clock.tick()
    clock.tick()
    assert clock.agent_steps_in("Boxing") == 12  # the segment is played, but not completed
    clock.next_segment()
    assert (clock.agent_steps_in("Pong"), clock.agent_steps_in("Boxing")) == (12, 12)
    play_segment(clock)
    assert (clock.agent_steps_in("Pong"), clock.agent_steps_in("Boxing")) == (24, 12)
    assert clock.agent_steps_in("Krull") == 0


@given(st.integers(1, 20), st.integers(1, 50), st.integers(1, 40))
def test_what_is_due_is_what_single_steps_would_trigger(copies: int, every: int, rows: int) -> None:
    clock = SegmentClock(["Pong"], copies * rows, copies)
    for row in range(rows):
        clock.tick()
        steps = range(row * copies + 1, (row + 1) * copies + 1)
        assert clock.times_due(every) == sum(step % every == 0 for step in steps)


def test_the_state_continues_in_another_clock() -> None:
    clock, again = make(), make()
    play_segment(clock)
    clock.tick()
    again.load_state_dict(clock.state_dict())
    assert (again.segment, again.row, again.game) == (1, 1, "Boxing")
    assert again.agent_steps == clock.agent_steps


OPTIONS: dict[str, Any] = {"levels": 2, "prior": 1.0, "window": 2, "side": 42}
BLACK, WHITE = np.zeros((1, 8, 8), np.uint8), np.full((1, 8, 8), 255, np.uint8)


def recognizing() -> ContextTracker:
    return ContextTracker(make_recognizer(OPTIONS))


def test_the_recognizer_takes_its_own_options_alone() -> None:
    recognizer = make_recognizer({**OPTIONS, "lr": 1.0})
    assert isinstance(recognizer, ForgetMeNot)
    recognizer.observe(BLACK)
    assert not recognizer.decided
    recognizer.observe(BLACK)
    assert recognizer.decided  # after a window of 2


def test_games_can_be_recognized_by_their_screens() -> None:
    settings = {"levels": 4, "side": 20, "usual": 0.3}
    recognizer = make_recognizer({**OPTIONS, **settings, "recognizer": "screens"})
    assert isinstance(recognizer, ScreenRecognizer)
    assert settings.items() <= asdict(recognizer.config).items()


def test_true_labels_are_numbered_as_the_games_appear() -> None:
    contexts = ContextTracker(None)
    games = ["Pong", "Krull", "Pong", "Boxing"]
    assert [contexts.identify(game, BLACK) for game in games] == [0, 1, 0, 2]


def test_without_labels_all_games_are_one_context() -> None:
    contexts = ContextTracker(None, labelled=False)
    assert [contexts.identify(game, BLACK) for game in ("Pong", "Krull")] == [0, 0]
    assert contexts.num_contexts == 1
    assert contexts.recognize_in_test("Boxing", present=5)(BLACK) == 0


def test_contexts_are_counted_by_labels_or_by_the_recognizer() -> None:
    told, recognized = ContextTracker(None), recognizing()
    for game, frame in [("Pong", BLACK)] * 4 + [("Krull", WHITE)] * 4 + [("Pong", BLACK)] * 4:
        told.identify(game, frame)
        recognized.identify(game, frame)
    assert told.num_contexts == recognized.num_contexts == 2


def test_a_game_is_tested_in_its_own_context_or_in_the_present_one() -> None:
    contexts = ContextTracker(None)
    for game in ("Pong", "Krull"):
        contexts.identify(game, BLACK)
    assert contexts.recognize_in_test("Krull", present=0)(BLACK) == 1
    assert contexts.recognize_in_test("Boxing", present=5)(BLACK) == 5


def test_a_recognizer_is_undecided_within_a_window() -> None:
    contexts = recognizing()
    frames = [BLACK] * 4 + [WHITE] * 4
    found = [contexts.identify("whatever it is called", frame) for frame in frames]
    assert found == [None, 0, None, 0, None, 1, None, 1]


def test_tests_recognize_frames_without_learning() -> None:
    contexts = recognizing()
    assert contexts.recognize_in_test("Pong", present=7)(BLACK) == 7  # nothing was observed yet
    for frame in [BLACK] * 4 + [WHITE] * 4:
        contexts.identify("Pong", frame)
    contexts.count(0, 4)
    recognize = contexts.recognize_in_test("Pong", present=0)
    assert [recognize(WHITE) for _ in range(3)][-1] == 0  # context 1 was never played in
    contexts.count(1, 4)
    before = contexts.state_dict()["recognizer"]["counts"].clone()
    recognize = contexts.recognize_in_test("Pong", present=7)
    assert recognize(BLACK) == 0
    assert [recognize(WHITE) for _ in range(3)][-1] == 1
    assert contexts.state_dict()["recognizer"]["counts"].equal(before)


def test_steps_are_counted_by_context_and_since_its_consolidation() -> None:
    contexts = ContextTracker(None)
    assert contexts.agent_steps(0) == contexts.steps_since_consolidation(0) == 0
    contexts.count(0, 8)
    contexts.count(1, 8)
    contexts.mark_consolidated(0)
    contexts.count(0, 4)
    assert (contexts.agent_steps(0), contexts.steps_since_consolidation(0)) == (12, 4)
    assert (contexts.agent_steps(1), contexts.steps_since_consolidation(1)) == (8, 8)


@pytest.mark.parametrize("recognizes", [False, True])
def test_the_state_continues_in_another_tracker(recognizes: bool) -> None:
    first, second = (recognizing() if recognizes else ContextTracker(None) for _ in range(2))
    for game, frame in [("Pong", BLACK)] * 3 + [("Krull", WHITE)] * 4:
        first.identify(game, frame)
        first.count(0, 4)
    first.mark_consolidated(0)
    second.load_state_dict(first.state_dict())
    assert (second.agent_steps(0), second.steps_since_consolidation(0)) == (28, 0)
    rest = [("Boxing", WHITE), ("Krull", BLACK), ("Pong", BLACK)]
    assert [second.identify(*one) for one in rest] == [first.identify(*one) for one in rest]


def test_of_two_tasks_that_are_one_the_context_with_more_steps_is_kept() -> None:
    contexts = ContextTracker(Merging([(0, []), (1, []), (0, [(1, 0)]), (2, []), (0, [(2, 0)])]))
    assert contexts.identify("", BLACK) == 0
    contexts.count(0, 10)
    assert contexts.identify("", BLACK) == 1
    contexts.count(1, 30)
    assert contexts.identify("", BLACK) == 1  # task 0, which is context 1 from now on
    assert contexts.merges == [(1, 0)]
    assert (contexts.agent_steps(1), contexts.agent_steps(0)) == (40, 0)
    assert contexts.steps_since_consolidation(1) == 40
    assert contexts.identify("", BLACK) == 2
    assert contexts.merges == []
    contexts.count(2, 5)
    assert contexts.identify("", BLACK) == 1
    assert contexts.merges == [(1, 2)]
    restored = ContextTracker(Merging([(0, [])]))
    restored.load_state_dict(contexts.state_dict())
    assert restored.identify("", BLACK) == 1


@pytest.mark.parametrize("seed", [0, 1])
def test_the_preset_of_minatar_tells_its_games_apart(seed: int) -> None:
    """Breakout's bricks and the aliens of Space Invaders are in the same rows and channel.

    Of seed 1, a frame just before the first change of the game is one that its task did not know.
    """
    options = asdict(Games.preset("laptop"))
    contexts = ContextTracker(make_recognizer(options))
    names, random = list(options["games"]), np.random.default_rng(seed)
    found: dict[str, Counter[int | None]] = {name: Counter() for name in names}
    for segment, name in enumerate([*names[::-1], *names]):
        seed_of_game = 10 * seed + segment
        game = RunningGame(name, 8, seed=seed_of_game, size=84, max_episode_steps=2_500, history=1)
        for row in range(600):
            found[name][contexts.identify(name, game.frame_in_turn(row))] += 1
            game.step(random.integers(0, 6, 8))
    most = {name: counts.most_common(1)[0] for name, counts in found.items()}
    assert len({context for context, _ in most.values()}) == len(names)
    assert min(steps for _, steps in most.values()) > 0.9 * 1_200


fork = multiprocessing.get_context("fork")

BREAKOUT, INVADERS = "minatar/breakout", "minatar/space_invaders:rotate90,actions1,channels1"

SMALL: dict[str, Any] = {
    "history": 1,
    "network": "minatar",
    "optimizer": "adam",
    "fresh_optimizer": True,
    "batch_size": 8,
    "update_every": 8,
    "target_every": 100,
    "replay_capacity": 400,
    "min_history": 40,
    "epsilon_start": 0,
    "epsilon_end": 200,
    "ewc_start": 100,
    "min_visit": 50,
    "fisher_batches": 3,
    "segment_steps": 400,
    "test_episodes": 2,
    "table_episodes": 2,
    "max_episode_steps": 200,
    "report_every": 100,
    "levels": 2,
    "prior": 1.0,
}
ATARI: dict[str, Any] = {
    **SMALL,
    "history": 4,
    "size": 42,
    "network": "small",
    "segment_steps": 120,
    "max_episode_steps": 40,
    "average_span": 3,
    "ewc_start": 50,
    "levels": 16,
    "prior": 0.1,
}


def config(arm: str, world: str = "minatar") -> dict[str, Any]:
    games = [BREAKOUT, INVADERS] if world == "minatar" else ["Pong", "Breakout"]
    return {
        "arm": arm,
        "seed": 3,
        "games": games,
        "schedule": [games[0], games[1], games[0]],
        "settings": SMALL if world == "minatar" else ATARI,
    }


def rows_of(options: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [row for row in make_continual(options).run() if row and row["kind"] == kind]


def test_every_game_is_tested_before_any_segment_and_after_each() -> None:
    tests = rows_of(config("plain"), "test")
    assert [row["segment"] for row in tests] == [0, 1, 2, 3]
    assert [row["game"] for row in tests] == [None, BREAKOUT, INVADERS, BREAKOUT]
    assert all(row["scores"].keys() == {BREAKOUT, INVADERS} for row in tests)
    assert all(len(scores) == 2 for row in tests for scores in row["scores"].values())
    assert tests[-1]["steps_in"] == {BREAKOUT: 800, INVADERS: 400}
    assert tests[1]["agreement"] == {BREAKOUT: 1.0}  # it was left just now
    assert tests[1]["regret"] == {BREAKOUT: 0.0}
    assert tests[2]["agreement"].keys() == {BREAKOUT, INVADERS}
    assert [row["contexts"] for row in tests] == [0, 1, 2, 2]


def test_the_last_row_of_a_segment_ends_it_whatever_rows_are_reported_in_between() -> None:
    options = config("plain")
    options["settings"] = {**SMALL, "report_every": 300}
    rows = rows_of(options, "train")
    assert [(row["segment"], row["step"]) for row in rows] == [
        *((0, 300), (0, 400), (1, 600), (1, 800)),
        *((2, 900), (2, 1200)),
    ]
    assert [sum(row["recognized"].values()) for row in rows] == [300, 100, 200, 200, 100, 300]


def test_a_switch_ends_the_episodes_of_an_agent_that_is_not_told_of_it() -> None:
    """No transition goes from one game to the next."""
    learner = make_continual(config("plain-unlabelled"))
    for _ in learner.run():
        if learner.clock.segment == 1 and learner.clock.row > 10:
            break
    (replay,) = learner.experience.replays.values()
    last = learner.clock.rows_per_segment - 1
    known = replay._outcome_known(np.arange(last - 1, last + 2).repeat(4), np.tile(range(4), 3))
    terminal = replay._ring["terminal"][last]
    assert known[:4].all()
    assert known[8:].all()
    assert known[4:8].tolist() == terminal.tolist()


def test_tasks_are_consolidated_at_switches_by_the_protected_alone() -> None:
    assert rows_of(config("plain"), "fisher") == []
    assert rows_of(config("single"), "fisher") == []
    fishers = rows_of(config("ewc-labels"), "fisher")
    assert [(row["step"], row["context"], row["wells"]) for row in fishers] == [
        (400, 0, 1),
        (800, 1, 2),
    ]
    assert all(row["trace"] > 0 for row in fishers)


def test_a_task_is_tested_and_left_with_the_average_of_the_last_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = config("ewc-fmn", "atari")
    options["settings"] = {**ATARI, "window": 5}  # rows in which it learns on, until it has noticed
    learner = make_continual(options)
    first = next(learner.agent.network.layers.parameters())
    learned: list[Tensor] = []
    tested: list[tuple[int, Tensor]] = []  # after so many updates, with these weights
    anchored: list[tuple[int, Tensor]] = []

    def look_after(learn: Any) -> Any:
        def look(*args: Any) -> Any:
            result = learn(*args)
            learned.append(first.detach().clone())
            return result

        return look

    def look_before(act: Any, seen: list[tuple[int, Tensor]]) -> Any:
        def look(*args: Any, **options: Any) -> Any:
            seen.append((len(learned), first.detach().clone()))
            return act(*args, **options)

        return look

    agent, evaluation = learner.agent, learner.measurements._evaluation
    monkeypatch.setattr(agent, "learn", look_after(agent.learn))
    monkeypatch.setattr(evaluation, "play", look_before(evaluation.play, tested))
    consolidate = look_before(agent.memory.consolidate, anchored)
    monkeypatch.setattr(agent.memory, "consolidate", consolidate)
    for _ in itertools.takewhile(lambda row: not anchored, learner.run()):
        pass
    (at_end, tested_with), (at_switch, left_with) = tested[-1], anchored[0]
    assert 3 < at_end < at_switch
    assert not torch.allclose(tested_with, learned[at_end - 1])
    torch.testing.assert_close(tested_with, running_mean(learned[:at_end]))
    torch.testing.assert_close(left_with, running_mean(learned[:at_switch]))


def running_mean(seen: list[Tensor], span: int = ATARI["average_span"]) -> Tensor:
    """A plain mean of the first, and then a running one."""
    mean = torch.stack(seen[:span]).mean(0)
    for weights in seen[span:]:
        mean = mean + (weights - mean) / span
    return mean


@pytest.mark.parametrize("arm", ["ewc-kronecker", "ewc-kronecker-gates-labels"])
def test_wells_with_factors_are_made_and_reported_at_every_switch(arm: str) -> None:
    options = config(arm)
    options["settings"] = {**SMALL, "recognizer": "screens", "gates": 0.5}
    fishers = rows_of(options, "fisher")
    assert [row["wells"] for row in fishers] == [1, 2]
    assert all(row["trace"] > row["largest"] > 0 for row in fishers)


def test_a_task_is_consolidated_after_enough_steps_in_it() -> None:
    options = config("ewc-labels")
    options["settings"] = {**SMALL, "ewc_start": 500}
    assert rows_of(options, "fisher") == []  # no task has so many when it is left


def test_a_task_left_before_n_steps_is_not_consolidated() -> None:
    options = config("ewc-labels")
    options["settings"] = {
        **options["settings"],
        "ewc_start": 0,
        "min_visit": 0,
        "environments": 100,
        "n_step": 4,
    }
    assert rows_of(options, "fisher") == []
    options["settings"] = {**options["settings"], "n_step": 3}
    assert len(rows_of(options, "fisher")) > 0


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_an_agent_that_diverges_stops_with_the_cause() -> None:
    options = config("plain")
    options["settings"] = {**options["settings"], "lr": 1e30}
    with pytest.raises(RunError, match=r"diverged: its loss is (nan|inf) after \d+ steps"):
        rows_of(options, "test")


def test_of_two_contexts_that_are_one_task_only_one_goes_on() -> None:
    learner = make_continual(config("ewc-fmn"))
    visits = [(0, [])] * 200 + [(1, [])] * 50 + [(2, [])] * 50
    learner.contexts.recognizer = Merging([*visits, (0, [(2, 0)]), (0, []), (1, [])])
    learner.play(100)
    learner._consolidate()
    while learner.contexts.recognizer.script[3:]:
        learner._play_row()
    assert learner.agent.context == 2
    learner.agent.consolidate(learner.batches(2, learner.random), learner.random)
    assert set(learner.agent.memory.tasks) == {"0", "1", "2"}
    learner._play_row()
    assert learner.agent.context == 0
    assert set(learner.agent.memory.tasks) == {"0", "1"}
    assert learner.experience.replays.keys() == {0, 1}
    rows = learner.experience.replays[0].written
    learner._play_row()
    assert learner.experience.replays[0].written == rows + 1


def test_strong_wells_hold_the_weights_and_plain_training_moves_them() -> None:
    moved = {}
    for arm in ("plain", "ewc-labels"):
        options = config(arm)
        options["settings"] = {**SMALL, "strength": 1e6, "floor": 0.1}
        learner = make_continual(options)
        weight = learner.agent.network.layers[0].weight
        for _ in learner.run():
            if learner.clock.segment == 1 and learner.clock.row == 0:
                start = weight.detach().clone()
            if learner.clock.segment == 2 and learner.clock.row == 0:
                break
        moved[arm] = float((weight - start).detach().abs().max())
    assert moved["ewc-labels"] < moved["plain"] / 20


def test_forget_me_not_finds_the_games_by_itself() -> None:
    trained = rows_of(config("ewc-fmn"), "train")
    by_segment = [set(), set(), set()]
    for row in trained:
        by_segment[row["segment"]].add(row["context"])
    assert by_segment[0] == by_segment[2]
    assert not by_segment[0] & by_segment[1]


def test_held_back_rows_reach_the_replay_of_the_task_decided() -> None:
    learner = make_continual(config("ewc-fmn"))
    for _ in learner.run():
        stored = sum(replay.written for replay in learner.experience.replays.values())
        assert len(learner.experience.pending) <= learner.config.window
        if learner.clock.segment == 0:
            assert stored + len(learner.experience.pending) == learner.clock.row
        elif learner.clock.segment == 1 and learner.clock.row > 40:
            break
    assert len(learner.experience.replays) >= 2


def test_exploration_depends_on_the_steps_in_the_present_task() -> None:
    learner = make_continual(config("plain"))
    for _ in learner.run():
        if learner.clock.segment == 1 and learner.clock.row > 0:
            break
    assert learner.contexts.agent_steps(0) == 400
    assert learner._epsilon() == pytest.approx(1 - 0.99 * learner.contexts.agent_steps(1) / 200)
    learner.agent.enter(0)
    assert learner._epsilon() == pytest.approx(0.01)


# Runs that are killed


@pytest.mark.parametrize("tests", [3, 4])
def test_stopped_before_or_after_the_last_test_it_ends_the_same(tmp_path: Path, tests: int) -> None:
    """After it no game is running any more, and the state holds none."""
    whole, resumed = make_continual(config("ewc-fmn")), make_continual(config("ewc-fmn"))
    whole.keep_in(tmp_path / "whole")
    (tmp_path / "whole").mkdir()
    for _ in whole.run():
        if whole.progress == 1 and whole.measurements.tests == tests:
            break
    state = copy.deepcopy(whole.state_dict())
    assert bool(state["game"]) == (tests == 3)
    resumed.keep_in(shutil.copytree(tmp_path / "whole", tmp_path / "resumed"))
    resumed.load_state_dict(state)
    rows = [[row for row in learner.run() if row] for learner in (whole, resumed)]
    assert rows[0] == rows[1]
    assert [row["kind"] for row in rows[0]][-1:] == (["test"] if tests == 3 else [])
    assert_equal(whole.state_dict(), resumed.state_dict())


def train(run: RunDirectory, options: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    run_through(make_continual(options), run, checkpoint_seconds=0)


def assert_same_end(run: Path, whole: Path) -> None:
    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    first, second = (load_checkpoint(path) for path in (run, whole))
    assert first is not None
    assert second is not None
    assert first["finished"]
    assert_equal(first["state"], second["state"])


def assert_equal(first: Any, second: Any) -> None:
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_equal(first[key], second[key])
    elif isinstance(first, torch.Tensor):
        assert torch.equal(first, second)
    else:
        assert first == second


@pytest.mark.parametrize(
    ("arm", "world", "kills"),
    [("ewc-fmn", "minatar", 5), ("ewc-kronecker-labels", "minatar", 3), ("ewc-fmn", "atari", 4)],
)
def test_killed_at_random_moments_it_ends_bit_for_bit_the_same(
    tmp_path: Path, arm: str, world: str, kills: int
) -> None:
    options = config(arm, world)
    fresh = (RunDirectory(tmp_path / f"run{number}") for number in itertools.count())
    whole = next(fresh)
    whole.path.mkdir()
    train(whole, options)
    moments = random.Random(json.dumps(options))
    run = next(fresh)
    run.path.mkdir()
    done = 0
    while done < kills:
        child = fork.Process(target=train, args=(run, options))
        child.start()
        child.join(moments.uniform(0.1, 1.0))
        if child.exitcode == 0:  # it came to its end: begin another run
            assert_same_end(run.path, whole.path)
            run = next(fresh)
            run.path.mkdir()
            continue
        os.kill(child.pid or 0, signal.SIGKILL)
        child.join()
        done += 1
    train(run, options)
    assert_same_end(run.path, whole.path)


def test_a_replay_file_cut_short_is_noticed(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    options = config("plain")
    train(run, options)
    file = tmp_path / "replay-0.rows"
    os.truncate(file, file.stat().st_size - 1)
    learner = make_continual(options)
    learner.keep_in(tmp_path)
    with pytest.raises(ReplayError, match="cut short"):
        learner.load_state_dict(run.load() or {})
