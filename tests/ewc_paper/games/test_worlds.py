"""Worlds: running games and their copies, Atari's emulator, and MinAtar with its symmetries."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from minatar import Environment
from numpy.typing import NDArray

from ewc_paper.games.worlds.atari import MAX_NO_OPS, Atari, shrink
from ewc_paper.games.worlds.game import (
    Environments,
    FrameStacks,
    RunningGame,
    check_name,
    file_name,
    frame_shape,
    make_game,
)
from ewc_paper.games.worlds.minatar import GAMES, SYMMETRIES, MinAtar, MinAtarTask, parse

NAMES = ["Pong", "minatar/breakout:rotate90,actions1,channels2"]


@pytest.mark.parametrize(
    ("name", "shape", "actions"), [(NAMES[0], (1, 42, 42), 18), (NAMES[1], (10, 10, 10), 6)]
)
def test_a_game_shows_uint8_frames_of_its_shape(
    name: str, shape: tuple[int, int, int], actions: int
) -> None:
    game = make_game(name, size=42)
    assert (game.frame_shape, game.num_actions) == (shape, actions)
    first = game.reset(0)
    kept = first.copy()
    steps = [game.step(action) for action in range(actions)]
    for frame in [first, *(step.frame for step in steps)]:
        assert (frame.shape, frame.dtype) == (shape, np.uint8)
    assert np.array_equal(first, kept), "a frame was overwritten by a later step"
    assert not np.array_equal(first, steps[-1].frame)


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_is_truncated_at_the_time_limit(name: str) -> None:
    game = make_game(name, max_episode_steps=4)
    for seed in range(2):
        game.reset(seed)
        steps = [game.step(0) for _ in range(4)]
        assert [step.truncated for step in steps] == [False, False, False, True]
        assert not any(step.terminal for step in steps)


def test_a_game_that_ends_at_the_time_limit_is_not_truncated() -> None:
    def last_step(max_steps: int) -> tuple[int, bool, bool]:
        game = make_game("minatar/breakout", max_episode_steps=max_steps)
        game.reset(0)
        steps, terminal, truncated = 0, False, False
        while not (terminal or truncated):
            _, _, terminal, truncated = game.step(0)
            steps += 1
        return steps, terminal, truncated

    length, terminal, truncated = last_step(1000)
    assert (terminal, truncated) == (True, False)
    assert last_step(length) == (length, True, False)
    assert last_step(length - 1) == (length - 1, False, True)


@pytest.mark.parametrize("name", ["pong", "ALE/Pong-v5", "Pong-v5", "", "breakout"])
def test_an_unknown_game_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no game is called"):
        make_game(name)


def test_the_refusal_names_what_may_have_been_meant() -> None:
    with pytest.raises(ValueError, match="UpNDown"):
        make_game("UpnDown")


@pytest.mark.parametrize(
    ("name", "package", "module"),
    [
        ("Pong", "ale_py", "ewc_paper.games.worlds.atari"),
        ("minatar/freeway", "minatar", "ewc_paper.games.worlds.minatar"),
    ],
)
def test_a_missing_extra_is_named(
    name: str, package: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ImportError, match=rf"pip install 'ewc-paper\[{module.rsplit('.')[-1]}\]'"):
        make_game(name)


def test_a_file_name_has_no_separators() -> None:
    assert file_name("minatar/breakout:rotate90") == "minatar-breakout-rotate90"
    assert file_name("UpNDown") == "UpNDown"


@pytest.mark.parametrize("name", NAMES)
def test_the_shape_of_frames_is_known_without_the_game(name: str) -> None:
    assert frame_shape(name, size=42) == make_game(name, size=42).frame_shape


def test_a_name_is_checked_without_making_the_game() -> None:
    for name in NAMES:
        check_name(name)
    for name, said in (("pong", "no game is called"), ("minatar/pong", "no task is called")):
        with pytest.raises(ValueError, match=said):
            check_name(name)


class Frames:
    """An emulator that notes the action of every frame."""

    def __init__(self, emulator: Any) -> None:
        self.emulator, self.actions = emulator, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.emulator, name)

    def act(self, action: int) -> int:
        self.actions.append(action)
        return self.emulator.act(action)


def frames_of(sticky: float, seed: int, steps: int = 300) -> list[list[int]]:
    """The actions of the frames of each step; step n asks for action n % 18."""
    game: Any = Atari("Pong", 42, 10_000, sticky)
    game._ale = Frames(game._ale)
    game.reset(seed)
    game._ale.actions.clear()
    for step in range(steps):
        game.step(step % 18)
    taken = game._ale.actions
    return [taken[at : at + 4] for at in range(0, len(taken), 4)]


def test_sticky_actions_are_those_of_the_frame_before_as_often_as_they_should() -> None:
    assert frames_of(0.0, seed=1) == [[step % 18] * 4 for step in range(300)]
    taken = frames_of(0.25, seed=1)
    late = [
        next((at for at, one in enumerate(frames) if one == step % 18), 4)
        for step, frames in enumerate(taken)
    ]
    for step, (frames, begun) in enumerate(zip(taken, late, strict=True)):
        before = taken[step - 1][-1] if step else 0
        assert frames == [before] * begun + [step % 18] * (4 - begun)
    at_once = np.mean([begun == 0 for begun in late])
    assert at_once == pytest.approx(0.75, abs=4 * (0.75 * 0.25 / 300) ** 0.5)
    assert taken == frames_of(0.25, seed=1) != frames_of(0.25, seed=2)


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
from test_worlds import actions, environments, fingerprint
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


def frames(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)[:, None, None, None] * np.ones((1, 1, 2, 2), np.uint8)


def test_stacks_hold_the_last_frames_and_none_from_before_an_episode() -> None:
    stacks = FrameStacks(2, (1, 2, 2), history=3)
    stacks.push(frames(1, 11), np.array([True, True]))
    stacks.push(frames(2, 12), np.array([False, False]))
    assert stacks.states[:, :, 0, 0].tolist() == [[0, 1, 2], [0, 11, 12]]
    stacks.push(frames(3, 13), np.array([False, True]))
    assert stacks.states[:, :, 0, 0].tolist() == [[1, 2, 3], [0, 0, 13]]
    assert stacks.newest(0)[0, 0, 0] == 3


def test_copies_without_a_frame_stay_as_they_are() -> None:
    stacks = FrameStacks(2, (1, 2, 2), history=2)
    stacks.push(frames(1, 11), np.array([True, True]))
    stacks.push_some(np.array([1]), frames(12))
    assert stacks.states[:, :, 0, 0].tolist() == [[0, 1], [11, 12]]


COPIES, HISTORY = 3, 2
BREAKOUT = "minatar/breakout"


def running_game(seed: int = 0) -> RunningGame:
    return RunningGame(BREAKOUT, COPIES, seed=seed, size=84, max_episode_steps=20, history=HISTORY)


def breakout_actions(rows: int) -> np.ndarray:
    return np.random.default_rng(1).integers(6, size=(rows, COPIES))


def test_states_are_the_last_frames_of_each_episode() -> None:
    game = running_game()
    reference = Environments(BREAKOUT, COPIES, seed=0, size=84, max_episode_steps=20)
    before = np.zeros_like(reference.frames)
    for row in breakout_actions(60):
        before[reference.is_first] = 0
        np.testing.assert_array_equal(
            game.states, np.concatenate([before, reference.frames], axis=1)
        )
        before = reference.frames.copy()
        expected, step = reference.step(row), game.step(row)
        assert step.scores == expected.scores
        np.testing.assert_array_equal(step.rewards, expected.rewards)


def test_each_copy_is_seen_in_turn() -> None:
    game = running_game()
    for row, chosen in enumerate(breakout_actions(7)):
        np.testing.assert_array_equal(game.frame_in_turn(row), game.frames[row % COPIES])
        game.step(chosen)


@pytest.mark.parametrize("rows", [0, 7, 45])
def test_a_running_game_is_restored_where_it_was(rows: int) -> None:
    game, again = running_game(), running_game()
    for row in breakout_actions(rows):
        game.step(row)
    state = game.state_dict()
    assert json.dumps(state["environments"])  # plain values
    for row in breakout_actions(3):
        again.step(row)  # whatever it did before must not matter
    again.load_state_dict(state)
    for row in breakout_actions(30):
        np.testing.assert_array_equal(again.states, game.states)
        np.testing.assert_array_equal(again.is_first, game.is_first)
        assert again.step(row).scores == game.step(row).scores


def test_a_saved_state_of_a_running_game_is_a_copy() -> None:
    game = running_game()
    state = game.state_dict()
    saved = state["states"].clone()
    for row in breakout_actions(5):
        game.step(row)
    assert state["states"].equal(saved)


def bilinear(screen: NDArray[np.uint8], size: int) -> NDArray[np.float64]:
    """Every output pixel's centre, looked up between the four pixels around it."""
    height, width = screen.shape
    out = np.empty((size, size))
    for i in range(size):
        y = min(max((i + 0.5) * height / size - 0.5, 0), height - 1)
        top = min(int(y), height - 2)
        for j in range(size):
            x = min(max((j + 0.5) * width / size - 0.5, 0), width - 1)
            left = min(int(x), width - 2)
            (a, b), (c, d) = screen[top : top + 2, left : left + 2].astype(float)
            down, right = y - top, x - left
            upper, lower = a + (b - a) * right, c + (d - c) * right
            out[i, j] = upper + (lower - upper) * down
    return out


def real_screen() -> NDArray[np.uint8]:
    game = raw_game("Krull")
    game.reset(seed=0)
    for action in range(200):
        screen = game.step(action % 18)[0]
    return np.asarray(screen)


def raw_game(name: str) -> gymnasium.Env[NDArray[np.uint8], int]:
    return gymnasium.make(
        f"ALE/{name}-v5",
        obs_type="grayscale",
        frameskip=1,
        repeat_action_probability=0.0,
        full_action_space=True,
    )


@pytest.mark.parametrize("kind", ["real", "noise"])
def test_84x84_is_bilinear_interpolation(kind: str) -> None:
    noise = np.random.default_rng(0).integers(256, size=(210, 160), dtype=np.uint8)
    screen = noise if kind == "noise" else real_screen()
    assert screen.shape == (210, 160)
    assert screen.std() > 10
    # Rounded up or down: OpenCV also rounds in between, so not always to the nearest.
    assert np.abs(shrink(screen, 84)[0] - bilinear(screen, 84)).max() < 1


def test_42x42_is_the_mean_over_four_pixels_of_84x84() -> None:
    screen = np.random.default_rng(0).integers(256, size=(210, 160), dtype=np.uint8)
    means = shrink(screen, 84).reshape(42, 2, 42, 2).mean(axis=(1, 3))
    assert np.abs(shrink(screen, 42)[0] - means).max() <= 0.5


def test_a_small_ball_is_seen_wherever_it_is() -> None:
    for size in (84, 42):
        for column in range(40, 60):
            screen = np.zeros((210, 160), dtype=np.uint8)
            screen[100:104, column : column + 2] = 236
            assert shrink(screen, size).max() > 50


def test_steps_are_those_of_single_frames() -> None:
    """Four frames an action, the maximum of the last two, rewards summed; flickering Asteroids."""
    game, raw = Atari("Asteroids", 84, 27_000), raw_game("Asteroids")
    frame = game.reset(5)
    raw.reset(seed=0)
    for _ in range(np.random.default_rng(5).integers(1, MAX_NO_OPS, endpoint=True)):
        screen = raw.step(0)[0]
    assert np.array_equal(frame, shrink(screen, 84))

    flickers, total = 0, 0.0
    for action in np.random.default_rng(1).integers(18, size=300).tolist():
        singles = [raw.step(action) for _ in range(4)]
        before, last = singles[2][0], singles[3][0]
        step = game.step(action)
        assert np.array_equal(step.frame, shrink(np.maximum(before, last), 84))
        assert step.reward == sum(float(single[1]) for single in singles)
        flickers += int((before > last).any())
        total += step.reward
    assert flickers > 100
    assert total > 0


def test_all_18_actions_are_the_emulators() -> None:
    legal = Atari("Pong", 84, 27_000)._ale.getLegalActionSet()
    assert [action.value for action in legal] == list(range(Atari.num_actions)) == list(range(18))


def test_up_to_30_no_ops_are_drawn_from_the_seed() -> None:
    game = Atari("Pong", 84, 27_000)

    def no_ops(seed: int) -> int:
        game.reset(seed)
        return game._ale.getEpisodeFrameNumber() - game._start.getEpisodeFrameNumber()

    counts = [no_ops(seed) for seed in range(100)]
    assert (min(counts), max(counts)) == (1, 30)
    assert len(set(counts)) > 20
    assert [no_ops(seed) for seed in range(5)] == counts[:5]


def test_the_loss_of_a_life_is_not_an_end() -> None:
    game = Atari("Breakout", 84, 27_000)
    game.reset(0)
    lives, terminal = [game._ale.lives()], False
    while not terminal:
        _, _, terminal, _ = game.step(1)
        assert terminal == (game._ale.lives() == 0)
        lives.append(game._ale.lives())
    assert sorted(set(lives), reverse=True) == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("name", ["Pong", "Freeway", "Qbert", "Amidar"])
def test_an_episode_of_atari_does_not_depend_on_those_before(name: str) -> None:
    """The emulator alone fails this: Freeway keeps some memory, Qbert and Amidar some pixels."""
    game = Atari(name, 84, 27_000)
    actions = np.random.default_rng(0).integers(18, size=750).tolist()
    one_no_op = next(s for s in range(100) if np.random.default_rng(s).integers(1, 31) == 1)

    def play() -> list[object]:
        frames = [game.reset(one_no_op)]
        steps = [game.step(action) for action in actions]
        frames += [step.frame for step in steps]
        return [*(frame.tobytes() for frame in frames), *(step[1:] for step in steps)]

    assert play() == play()


# Where the pixel (row i, column j) of the transformed square comes from.
SOURCES: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "": lambda i, j: (i, j),
    "rotate90": lambda i, j: (j, 9 - i),
    "rotate180": lambda i, j: (9 - i, 9 - j),
    "rotate270": lambda i, j: (9 - j, i),
    "mirror": lambda i, j: (i, 9 - j),
    "flip": lambda i, j: (9 - i, j),
    "transpose": lambda i, j: (j, i),
    "antitranspose": lambda i, j: (9 - j, 9 - i),
}


def transformed(frame: NDArray[np.uint8], task: MinAtarTask) -> NDArray[np.uint8]:
    out = np.empty_like(frame)
    for channel, source in enumerate(task.channel_order):
        for i in range(10):
            for j in range(10):
                out[channel, i, j] = frame[source, *SOURCES[task.symmetry](i, j)]
    return out


@pytest.mark.parametrize("game", GAMES)
def test_the_plain_task_is_the_game_as_published(game: str) -> None:
    task, published = MinAtar(f"minatar/{game}", 5000), Environment(game)
    actions, seen = np.random.default_rng(0), 0
    for seed in range(4):
        published.seed(seed)
        published.reset()
        published.last_action = 0
        frame, terminal = task.reset(seed), False
        while not terminal and seen < 300:
            state = published.state().transpose(2, 0, 1)
            assert np.array_equal(frame[: len(state)], state * 255)
            assert not frame[len(state) :].any()
            action = int(actions.integers(6))
            frame, reward, terminal, _ = task.step(action)
            assert (reward, terminal) == published.act(action)
            seen += 1
    assert seen > 20


@pytest.mark.parametrize("symmetry", SYMMETRIES)
@pytest.mark.parametrize("game", ["seaquest", "breakout"])
def test_a_task_is_its_game_under_the_symmetry(game: str, symmetry: str) -> None:
    task = MinAtarTask(game, symmetry, actions=3, channels=5)
    plain, turned = MinAtar(f"minatar/{game}", 5000), MinAtar(str(task), 5000)
    frame, terminal = plain.reset(1), False
    assert np.array_equal(turned.reset(1), transformed(frame, task))
    actions = np.random.default_rng(2)
    for _ in range(40):
        if terminal:
            break
        action = int(actions.integers(6))
        frame, reward, terminal, truncated = plain.step(task.action_order[action])
        step = turned.step(action)
        assert np.array_equal(step.frame, transformed(frame, task))
        assert step[1:] == (reward, terminal, truncated)


def test_the_symmetries_are_the_eight_of_the_square() -> None:
    image = np.arange(100).reshape(10, 10)
    images = {SYMMETRIES[name](image).tobytes() for name in SYMMETRIES}
    assert len(images) == len(SYMMETRIES) == 8


def test_orders_are_permutations_that_differ_by_number() -> None:
    tasks = [MinAtarTask("asterix", actions=number, channels=number) for number in range(20)]
    assert tasks[0].action_order == list(range(6))
    assert tasks[0].channel_order.tolist() == list(range(10))
    for task in tasks:
        assert sorted(task.action_order) == list(range(6))
        assert sorted(task.channel_order) == list(range(10))
    assert len({tuple(task.channel_order) for task in tasks}) == 20
    assert len({tuple(task.action_order) for task in tasks}) > 15


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("minatar/freeway", MinAtarTask("freeway")),
        ("minatar/breakout:rotate90", MinAtarTask("breakout", "rotate90")),
        ("minatar/asterix:actions12", MinAtarTask("asterix", "", 12)),
        ("minatar/asterix:channels3", MinAtarTask("asterix", "", 0, 3)),
        (
            "minatar/space_invaders:flip,actions1,channels2",
            MinAtarTask("space_invaders", "flip", 1, 2),
        ),
    ],
)
def test_a_name_is_its_task(name: str, task: MinAtarTask) -> None:
    assert parse(name) == task
    assert str(task) == name


@pytest.mark.parametrize(
    "name",
    [
        "minatar/pong",
        "minatar/",
        "breakout",
        "minatar/breakout:",
        "minatar/breakout:rotate45",
        "minatar/breakout:rotate90,mirror",
        "minatar/breakout:actions",
        "minatar/breakout:actions0",
        "minatar/breakout:actions01",
        "minatar/breakout:actions1,rotate90",
        "minatar/breakout:mirror,",
        "minatar/breakout:mirror,actions1,actions2",
        "minatar/breakout:mirror,colors1",
    ],
)
def test_a_task_has_no_other_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"no task is called .*minatar/<game>\[:<symmetry>"):
        parse(name)


@pytest.mark.parametrize("game", GAMES)
def test_an_episode_of_minatar_does_not_depend_on_those_before(game: str) -> None:
    task = MinAtar(f"minatar/{game}", 100)
    actions = np.random.default_rng(0).integers(6, size=100).tolist()

    def play(seed: int) -> list[object]:
        played: list[object] = [task.reset(seed).tobytes()]
        for action in actions:
            frame, *rest = task.step(action)
            played.append((frame.tobytes(), rest))
            if rest[1] or rest[2]:
                break
        return played

    first = [play(seed) for seed in range(5)]
    assert [play(seed) for seed in reversed(range(5))] == first[::-1]
    assert len({repr(played) for played in first}) > 1
