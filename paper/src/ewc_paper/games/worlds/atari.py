"""Atari 2600 games, preprocessed as in Mnih et al. 2015; needs the extra `atari`.

An action is repeated for four frames of the emulator, and the agent sees the pixelwise maximum of
the last two (many games draw a sprite only in every other frame). The luminance is scaled from
210x160 to 84x84 by bilinear interpolation, and from there to a smaller size by averaging over
areas: at 42x42 plain interpolation would skip pixels, and a ball two pixels wide would flicker. All
18 actions, and the loss of a life does not end an episode.

With sticky actions (Machado et al. 2018) each frame takes the action of the frame before again with
some probability. They are drawn here and not by the emulator, which cannot be seeded anew for an
episode.
"""

from difflib import get_close_matches
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ewc_paper.games.worlds.game import Frame, GameStep
from ewc_paper.terminal import shown

try:
    import ale_py
    import ale_py.roms
    import cv2
    import gymnasium
except ImportError as error:
    raise ImportError(
        f"Atari games need an extra: pip install 'ewc-paper[atari]' ({error})"
    ) from error

ACTION_REPEAT = 4
MAX_NO_OPS = 30  # frames without an action at the start of an episode, so that episodes differ
BILINEAR_SIZE = 84


def shrink(screen: NDArray[np.uint8], size: int) -> Frame:
    """Scale a screen [height, width] to a frame [1, size, size]."""
    side = max(size, BILINEAR_SIZE)
    frame = cv2.resize(screen, (side, side), interpolation=cv2.INTER_LINEAR)
    if size < side:
        frame = cv2.resize(frame, (size, size), interpolation=cv2.INTER_AREA)
    return np.asarray(frame, dtype=np.uint8)[None]


class Atari:
    """One copy of an Atari game, named as in the ALE: "Pong", "UpNDown".

    Args:
        name: the game.
        size: height and width of a frame.
        max_episode_steps: agent steps after which an episode is truncated.
        sticky: probability that a frame takes the action of the frame before.
    """

    num_actions = 18

    def __init__(self, name: str, size: int, max_episode_steps: int, sticky: float = 0.0) -> None:
        self._sticky, self._held = sticky, 0  # the action of the last frame
        self._random = np.random.default_rng(0)
        self.frame_shape = (1, size, size)
        self._max_episode_steps, self._agent_steps = max_episode_steps, 0
        self._ale = _emulator(name)
        self._screens = np.empty((2, *self._ale.getScreenDims()), dtype=np.uint8)
        self._start = self._ale.cloneState()

    def reset(self, seed: int) -> Frame:
        self._agent_steps, self._held = 0, 0
        self._random = np.random.default_rng(seed)
        # In some games the emulator's reset clears the screen but keeps memory of the last episode
        # (Freeway); restoring the state replaces the memory but not the screen (Qbert).
        self._ale.reset_game()
        self._ale.restoreState(self._start)
        for _ in range(self._random.integers(1, MAX_NO_OPS, endpoint=True)):
            self._ale.act(0)
        self._ale.getScreenGrayscale(self._screens[0])
        return shrink(self._screens[0], self.frame_shape[1])

    def step(self, action: int) -> GameStep:
        ale, (before, last) = self._ale, self._screens
        # After the end of a game the emulator does nothing, so all repeats can be made.
        reward = sum(self._act(action) for _ in range(ACTION_REPEAT - 1))
        ale.getScreenGrayscale(before)
        reward += self._act(action)
        ale.getScreenGrayscale(last)
        frame = shrink(np.maximum(before, last, out=last), self.frame_shape[1])

        self._agent_steps += 1
        terminal = ale.game_over(with_truncation=False)
        truncated = not terminal and self._agent_steps >= self._max_episode_steps
        return GameStep(frame, float(reward), terminal, truncated)

    def _act(self, action: int) -> int:
        """Emulate a frame, and return its reward."""
        if not self._sticky or self._random.random() >= self._sticky:
            self._held = action
        return self._ale.act(self._held)


def rom_of(name: str) -> Path:
    """Return the ROM file of a game; raise ValueError if there is none of this name."""
    gymnasium.register_envs(ale_py)
    known = {spec.name: spec for spec in gymnasium.registry.values() if spec.namespace == "ALE"}
    if name not in known:
        near = ", ".join(get_close_matches(name, known)) or "Pong, Breakout or minatar/breakout"
        raise ValueError(f"no game is called {shown(name)}; did you mean {near}?")
    rom = ale_py.roms.get_rom_path(known[name].kwargs["game"])
    assert rom is not None  # ale-py contains the ROM of every game it registers
    return rom


def _emulator(name: str) -> ale_py.ALEInterface:
    """Return an emulator that has loaded and started the game."""
    rom = rom_of(name)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    # `gymnasium.make` cannot be seeded without loading the game twice.
    ale = ale_py.ALEInterface()
    ale.setInt("random_seed", 0)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(rom)
    ale.reset_game()
    return ale
