"""Games learned in a row: who is protected, what is recognized, and runs that are killed."""

import copy
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from support.merging import Merging
from torch import Tensor

from ewc_paper.errors import RunError
from ewc_paper.games.learner import make_continual
from ewc_paper.games.replay import ReplayError
from ewc_paper.runs.checkpoint import load_checkpoint
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.loop import carry_on

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
    "wins": 3,
    "independent": 1e9,
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
    "wins": 2,
    "independent": 12.0,
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
    learner = make_continual(config("ewc-fmn", "atari"))  # which learns on until it has noticed
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
    (at_end, tested_with), (at_switch, left_with) = tested[1], anchored[0]
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
        assert len(learner.experience.pending) <= learner.config.window * learner.config.wins
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
    carry_on(make_continual(options), run, checkpoint_seconds=0)


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
    [("ewc-fmn", "minatar", 5), ("ewc-labels", "minatar", 3), ("ewc-fmn", "atari", 4)],
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
