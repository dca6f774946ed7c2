"""Atari frames, rewards and ends are those of a slow loop over the emulator's single frames."""

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from ewc_paper.games.worlds.atari import MAX_NO_OPS, Atari, shrink


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
def test_an_episode_does_not_depend_on_those_before(name: str) -> None:
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
