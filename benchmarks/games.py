"""Agent steps a second on Pong beside stable-baselines3's DQN, in one thread.

The same network (Mnih et al. 2015), minibatches of 32 every four steps, Adam, action repeat 4,
frames of 84x84 and a stack of four. stable-baselines3 learns single Q; ours is shown with single
and with Double Q, and so are our small networks, which it does not have.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.libraries import library
from benchmarks.tables import Row, Table
from benchmarks.timing import best_seconds, ratios
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.learner import ContinualLearner

STEPS, ROUNDS, HISTORY = 256, 4, 1_000
COMMON: dict[str, Any] = {
    "optimizer": "adam",
    "lr": 1e-4,
    "replay_capacity": 10_000,
    "min_history": HISTORY,
    "environments": 8,
    "update_every": 4,
    "segment_steps": 1_000_000,
}


def tables(*, ours_only: bool) -> Iterator[Table]:
    ways: dict[str, Callable[[], object]] = {}
    if not ours_only:
        ways["stable-baselines3 DQN"] = stable_baselines()
    ways["ewc, single Q"] = ours(network="nature", double=False)
    ways["ewc, Double Q"] = ours(network="nature")
    ways["ewc, the paper's network, Double Q"] = ours(network="paper")
    ways["ewc, efficient network, Double Q"] = ours(network="efficient")
    ways["ewc, small network at 42x42, Double Q"] = ours(network="small", size=42)
    measured = best_seconds(ways, ROUNDS)
    rows: list[Row] = [
        {"way": name, "steps a second": STEPS / measured[name], "multiple": 1 / multiple}
        for name, multiple in ratios(measured).items()
    ]
    yield Table(
        "Playing and learning Pong, batch 32 every 4 steps",
        rows,
        [f"multiple: of the speed of {next(iter(ways))}."],
    )


def ours(**settings: Any) -> Callable[[], object]:
    """Play and learn for some steps, again and again."""
    learner = ContinualLearner(
        arm="single",
        seed=0,
        games=["Pong"],
        schedule=["Pong"],
        config=AgentConfig(**{**COMMON, **settings}),
    )

    def play(steps: int = STEPS) -> None:
        until = learner.clock.agent_steps + steps
        while learner.clock.agent_steps < until:
            learner.play(max_rows=32)

    play(HISTORY + 500)  # until it learns
    return play


def stable_baselines() -> Callable[[], object]:
    """Its DQN as documented for Atari, without logging."""
    sb3 = library("stable_baselines3")
    utilities = library("stable_baselines3.common.env_util")
    stacking = library("stable_baselines3.common.vec_env")
    library("gymnasium").register_envs(library("ale_py"))
    options = {"frameskip": 1, "full_action_space": True}
    environment = stacking.VecFrameStack(
        utilities.make_atari_env("ALE/Pong-v5", env_kwargs=options), n_stack=4
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = sb3.DQN(
            "CnnPolicy",
            environment,
            learning_rate=COMMON["lr"],
            buffer_size=COMMON["replay_capacity"],
            learning_starts=HISTORY,
            batch_size=32,
            train_freq=4,
            gradient_steps=1,
            device="cpu",
        )

    def play(steps: int = STEPS) -> None:
        model.learn(steps, reset_num_timesteps=False)

    play(HISTORY + 500)
    return play
