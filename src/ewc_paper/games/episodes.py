"""Whole episodes, played by an agent that does not learn."""

from typing import NamedTuple

import numpy as np

from ewc_paper.games.agent import Agent
from ewc_paper.games.contexts import Recognize
from ewc_paper.games.frame_stacks import FrameStacks
from ewc_paper.games.worlds.game import Frame, Game
from ewc_paper.seeding import derive_seed


class Episodes(NamedTuple):
    """Several episodes of one game."""

    scores: list[float]  # total reward of each episode
    first_frames: list[Frame]  # all frames of the first episode


def play_episodes(
    agent: Agent, games: list[Game], recognize: Recognize, *, epsilon: float, seed: int
) -> Episodes:
    """Play one episode of each copy of a game, all at once.

    Args:
        agent: plays without learning; afterwards it is in the same context as before.
        games: the copies.
        recognize: returns the context of a frame. It sees one frame per step, of the first copy
            that still runs.
        epsilon: probability of a random action.
        seed: where all randomness comes from.
    """
    random = np.random.default_rng(derive_seed(seed, "test actions"))
    starts = [derive_seed(seed, "test", number) % 2**32 for number in range(len(games))]
    first = [game.reset(start) for game, start in zip(games, starts, strict=True)]
    stacks = FrameStacks(len(games), first[0].shape, agent.config.history)
    stacks.push(np.stack(first), is_first=np.ones(len(games), bool))
    scores = np.zeros(len(games))
    running = np.arange(len(games))
    first_frames = [first[0]]
    context = agent.context
    while len(running):
        agent.act_in(recognize(stacks.newest(int(running[0]))))
        actions = agent.act(stacks.states[running], epsilon, random)
        chosen = zip(running, actions, strict=True)
        steps = [games[number].step(int(action)) for number, action in chosen]
        scores[running] += [step.reward for step in steps]
        stacks.push_some(running, np.stack([step.frame for step in steps]))
        if running[0] == 0:
            first_frames.append(steps[0].frame)
        running = running[[not (step.terminal or step.truncated) for step in steps]]
    agent.act_in(context)
    return Episodes(scores.tolist(), first_frames)
