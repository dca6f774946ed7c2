"""Whole episodes, played by something that does not learn."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ewc_paper.games.contexts import Recognize
from ewc_paper.games.frame_stacks import FrameStacks
from ewc_paper.games.worlds.game import Frame, Game
from ewc_paper.seeding import derive_seed


class Player(Protocol):
    """What can play: an agent, or a random player."""

    @property
    def context(self) -> int:
        """The context that it acts in."""

    def act_in(self, context: int) -> None:
        """Act in this context from now on."""

    def act(
        self, states: NDArray[np.uint8], epsilon: float, random: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return one action per state [n, channels, height, width]."""


class Episodes(NamedTuple):
    """Several episodes of one game."""

    scores: list[float]  # total reward of each episode
    first_frames: list[Frame]  # all frames of the first episode
    recognized: dict[str, int]  # agent steps by context, as in rows of training


def play_episodes(
    player: Player,
    games: Sequence[Game],
    recognizers: Sequence[Recognize],
    *,
    history: int,
    epsilon: float,
    seed: int,
) -> Episodes:
    """Play one episode of each copy of a game, all at once.

    Args:
        player: plays without learning; afterwards it is in the same context as before.
        games: the copies.
        recognizers: one per copy. It returns the context of a frame and sees every frame of its
            own copy, so no episode depends on how another one was recognized.
        history: frames per state.
        epsilon: probability of a random action.
        seed: where all randomness comes from.
    """
    random = np.random.default_rng(derive_seed(seed, "test actions"))
    starts = [derive_seed(seed, "test", number) % 2**32 for number in range(len(games))]
    first = [game.reset(start) for game, start in zip(games, starts, strict=True)]
    stacks = FrameStacks(len(games), first[0].shape, history)
    stacks.push(np.stack(first), is_first=np.ones(len(games), bool))
    scores = np.zeros(len(games))
    running = np.arange(len(games))
    first_frames = [first[0]]
    context, recognized = player.context, Counter[str]()
    while len(running):
        copies = running.tolist()
        contexts = np.array([recognizers[copy](stacks.newest(copy)) for copy in copies])
        recognized.update(map(str, contexts.tolist()))
        actions = _act_by_context(player, stacks.states[running], contexts, epsilon, random)
        chosen = zip(copies, actions.tolist(), strict=True)
        steps = [games[copy].step(action) for copy, action in chosen]
        scores[running] += [step.reward for step in steps]
        stacks.push_some(running, np.stack([step.frame for step in steps]))
        if running[0] == 0:
            first_frames.append(steps[0].frame)
        running = running[[not (step.terminal or step.truncated) for step in steps]]
    player.act_in(context)
    return Episodes(scores.tolist(), first_frames, dict(recognized))


def _act_by_context(
    player: Player,
    states: NDArray[np.uint8],
    contexts: NDArray[np.int64],
    epsilon: float,
    random: np.random.Generator,
) -> NDArray[np.int64]:
    """Return one action per state, with one pass of the network per context."""
    actions = np.empty(len(states), np.int64)
    for context in np.unique(contexts):
        player.act_in(int(context))
        chosen = contexts == context
        actions[chosen] = player.act(states[chosen], epsilon, random)
    return actions
