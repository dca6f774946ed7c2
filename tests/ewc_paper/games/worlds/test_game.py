"""A name makes its game, or is refused with a reason; every game keeps to the protocol."""

import sys

import numpy as np
import pytest

from ewc_paper.games.worlds.game import check_name, file_name, frame_shape, make_game

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
