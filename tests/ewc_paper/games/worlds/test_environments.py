"""Copies are separate games that restart by themselves, and can be restored where they were."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ewc_paper.games.worlds.environments import Environments
from ewc_paper.games.worlds.game import make_game

WORLDS = ["Pong", "Qbert", "minatar/seaquest:rotate90,actions1,channels2"]
MAX_STEPS = 60


def environments(name: str, seed: int = 0, count: int = 3) -> Environments:
    return Environments(name, count, seed=seed, size=42, max_episode_steps=MAX_STEPS)


def actions(name: str, steps: int) -> np.ndarray:
    limit = 6 if name.startswith("minatar/") else 18
    return np.random.default_rng(9).integers(limit, size=(steps, 3))


def fingerprint(copies: Environments, rows: np.ndarray) -> str:
    """A hash of everything seen while the rows of actions are taken."""
    digest = hashlib.sha256(copies.frames.tobytes())
    for row in rows:
        rewards, terminal, truncated, scores = copies.step(row)
        for array in (rewards, terminal, truncated, copies.frames, copies.is_first):
            digest.update(array.tobytes())
        digest.update(repr(scores).encode())
    return digest.hexdigest()


@pytest.mark.parametrize("name", ["Pong", "minatar/asterix"])
def test_every_copy_is_a_game_of_its_own(name: str) -> None:
    copies, rows = environments(name), actions(name, 100)
    frames = [copies.frames.copy()]
    outcomes = []
    for row in rows:
        outcomes.append(copies.step(row))
        frames.append(copies.frames.copy())
    for copy in range(3):
        game, episode, score = make_game(name, 42, MAX_STEPS), 0, 0.0
        for number, action in enumerate(rows[:, copy].tolist()):
            previous = outcomes[number - 1]
            if number == 0 or previous.terminal[copy] or previous.truncated[copy]:
                seed = np.random.SeedSequence((0, copy, episode)).generate_state(1)
                assert np.array_equal(game.reset(int(seed[0])), frames[number][copy])
                episode, score = episode + 1, 0.0
            step, outcome = game.step(action), outcomes[number]
            score += step.reward
            assert step.reward == outcome.rewards[copy]
            assert step.terminal == outcome.terminal[copy]
            assert step.truncated == outcome.truncated[copy]
            if step.terminal or step.truncated:
                assert score in outcome.scores
            else:
                assert np.array_equal(step.frame, frames[number + 1][copy])
        assert episode > 1


def test_a_first_frame_follows_an_end_and_nothing_else() -> None:
    copies = environments("minatar/breakout")
    assert copies.is_first.all()
    ends = 0
    for row in actions("minatar/breakout", 100):
        outcome = copies.step(row)
        over = outcome.terminal | outcome.truncated
        assert np.array_equal(copies.is_first, over)
        assert len(outcome.scores) == over.sum()
        ends += int(over.sum())
    assert ends > 5


def test_copies_and_seeds_give_different_episodes() -> None:
    seen: list[list[bytes]] = [[] for _ in range(6)]
    first, other = environments("minatar/freeway"), environments("minatar/freeway", seed=1)
    for _ in range(10):
        for copies in (first, other):
            copies.step(np.zeros(3, dtype=np.int64))
        for frames, frame in zip(seen, [*first.frames, *other.frames], strict=True):
            frames.append(frame.tobytes())
    assert len({b"".join(frames) for frames in seen}) == 6


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("steps", [0, 45, 130])
def test_running_episodes_are_restored(name: str, steps: int) -> None:
    rows = actions(name, steps + 80)
    copies = environments(name)
    fingerprint(copies, rows[:steps])
    state = json.loads(json.dumps(copies.state_dict()))
    expected = fingerprint(copies, rows[steps:])

    restored = environments(name)
    fingerprint(restored, rows[-7:])  # whatever it did before must not matter
    restored.load_state_dict(state)
    assert restored.state_dict() == state
    assert fingerprint(restored, rows[steps:]) == expected


CHILD = """
import json, sys
sys.path.insert(0, sys.argv[1])
from test_environments import actions, environments, fingerprint
for name, state in json.load(sys.stdin).items():
    copies = environments(name)
    copies.load_state_dict(state)
    print(fingerprint(copies, actions(name, 125)[45:]))
"""


def test_running_episodes_are_restored_in_another_process() -> None:
    worlds = {name: environments(name) for name in WORLDS}
    for name, copies in worlds.items():
        fingerprint(copies, actions(name, 45))
    states = {name: copies.state_dict() for name, copies in worlds.items()}
    expected = [fingerprint(worlds[name], actions(name, 125)[45:]) for name in WORLDS]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(Path(__file__).parent)],
        input=json.dumps(states),
        capture_output=True,
        text=True,
        check=True,
    )
    assert child.stdout.split() == expected


def test_a_saved_state_is_a_copy() -> None:
    copies = environments("minatar/freeway")
    state = copies.state_dict()
    fingerprint(copies, actions("minatar/freeway", 5))
    assert state == {"episodes": [0, 0, 0], "actions": [[], [], []]}


@pytest.mark.parametrize("wrong", [[0, 0], [0, 0, 6], [-1, 0, 0], [0, 0, 0, 0]])
def test_wrong_actions_are_refused_and_change_nothing(wrong: list[int]) -> None:
    copies = environments("minatar/freeway")
    before = copies.state_dict()
    with pytest.raises(ValueError, match="expected 3 actions from 0 to 5"):
        copies.step(np.array(wrong))
    assert copies.state_dict() == before


def test_a_state_of_another_count_is_refused_and_changes_nothing() -> None:
    copies, other = environments("minatar/freeway"), environments("minatar/freeway", count=2)
    copies.step(np.zeros(3, dtype=np.int64))
    before = copies.state_dict()
    with pytest.raises(ValueError, match="episodes of 3 copies, got those of 2"):
        copies.load_state_dict(other.state_dict())
    assert copies.state_dict() == before
