"""Atari 2600 games, prepared for the agent as in Mnih et al. 2015; needs the extra `atari`.

An action is held for four frames of the emulator, of which the pixelwise maximum of the last two is
seen (many games draw a sprite only in every other frame). The luminance is brought from 210x160 to
84x84 by bilinear interpolation, and from there to a smaller size by the mean over areas: at 42x42
plain interpolation would skip over pixels, and a ball two pixels wide would come and go. All 18
actions, no sticky actions, and the loss of a life does not end an episode.
"""

from difflib import get_close_matches
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ewc_paper.games.worlds.game import Frame, Step

try:
    import ale_py
    import ale_py.roms
    import cv2
    import gymnasium
except ImportError as error:
    raise ImportError(f"Atari games need an extra: pip install 'ewc[atari]' ({error})") from error

ACTION_REPEAT = 4
MAX_NO_OPS = 30  # frames without action before an episode, so that episodes differ
BILINEAR_SIZE = 84


def shrink(screen: NDArray[np.uint8], size: int) -> Frame:
    """A screen [height, width] as a frame [1, size, size]."""
    side = max(size, BILINEAR_SIZE)
    frame = cv2.resize(screen, (side, side), interpolation=cv2.INTER_LINEAR)
    if size < side:
        frame = cv2.resize(frame, (size, size), interpolation=cv2.INTER_AREA)
    return np.asarray(frame, dtype=np.uint8)[None]


class Atari:
    """One copy of an Atari game, named as in the ALE: "Pong", "UpNDown"."""

    num_actions = 18

    def __init__(self, name: str, size: int, max_steps: int) -> None:
        self.frame_shape = (1, size, size)
        self._max_steps, self._steps = max_steps, 0
        self._ale = _emulator(name)
        self._screens = np.empty((2, *self._ale.getScreenDims()), dtype=np.uint8)
        self._start = self._ale.cloneState()

    def reset(self, seed: int) -> Frame:
        self._steps = 0
        # The emulator's reset clears the screen, but in some games keeps memory of the episode
        # before (Freeway); the stored state replaces the memory, but not the screen (Qbert).
        self._ale.reset_game()
        self._ale.restoreState(self._start)
        for _ in range(np.random.default_rng(seed).integers(1, MAX_NO_OPS, endpoint=True)):
            self._ale.act(0)
        self._ale.getScreenGrayscale(self._screens[0])
        return shrink(self._screens[0], self.frame_shape[1])

    def step(self, action: int) -> Step:
        ale, (before, last) = self._ale, self._screens
        # After the end of a game the emulator stands still, so there is no need to leave early.
        reward = sum(ale.act(action) for _ in range(ACTION_REPEAT - 1))
        ale.getScreenGrayscale(before)
        reward += ale.act(action)
        ale.getScreenGrayscale(last)
        frame = shrink(np.maximum(before, last, out=last), self.frame_shape[1])

        self._steps += 1
        terminal = ale.game_over(with_truncation=False)
        return Step(frame, float(reward), terminal, not terminal and self._steps >= self._max_steps)


def rom_of(name: str) -> Path:
    """The file of the game called `name`."""
    gymnasium.register_envs(ale_py)
    known = {spec.name: spec for spec in gymnasium.registry.values() if spec.namespace == "ALE"}
    if name not in known:
        near = ", ".join(get_close_matches(name, known)) or "Pong, Breakout or minatar/breakout"
        raise ValueError(f"no game is called {name!r}; did you mean {near}?")
    rom = ale_py.roms.get_rom_path(known[name].kwargs["game"])
    assert rom is not None  # ale-py brings the ROM of every game it registers
    return rom


def _emulator(name: str) -> ale_py.ALEInterface:
    """The emulator with the game just loaded and started."""
    rom = rom_of(name)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    # Not by `gymnasium.make`, which cannot be seeded without loading the game twice.
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", 0)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(rom)
    ale.reset_game()
    return ale
