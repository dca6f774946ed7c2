"""Agent steps per second on Pong, compared with stable-baselines3's DQN, in one thread.

Both have the same network (Mnih et al. 2015), minibatches of 32 every four steps, Adam, an action
repeat of 4, frames of 84x84 and a stack of four. stable-baselines3 has no Double Q-learning; ours
is measured without and with it. Our other networks are measured too.

`update` says what a minibatch costs, kernel by kernel, beside what the processor can do. Its limit
is the speed of a product of two large matrices, the fastest arithmetic that this library reaches on
this processor. A kernel that runs below it could in principle be faster; what is not arithmetic
could in principle take no time. It also measures other ways to compute the same minibatch.
"""

import warnings
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.measure import ResultRow, ResultTable, Workload, best_seconds, library, ratios
from ewc_paper.games.agent import Agent
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.network import NETWORKS, Architecture
from ewc_paper.games.replay import Transitions
from ewc_paper.games.training import ContinualLearner

STEPS, ROUNDS, HISTORY = 256, 4, 1_000
WARM_UP = HISTORY + 500  # steps after which both learn at their usual speed
COMMON: dict[str, Any] = {
    "optimizer": "adam",
    "lr": 1e-4,
    "replay_capacity": 10_000,
    "min_history": HISTORY,
    "environments": 8,
    "update_every": 4,
    "segment_steps": 1_000_000,
}


def tables(*, ours_only: bool) -> Iterator[ResultTable]:
    workloads: dict[str, Callable[[], object]] = {}
    if not ours_only:
        workloads["stable-baselines3 DQN"] = stable_baselines()
    workloads["ewc, single Q"] = ours(network="nature", double=False)
    workloads["ewc, Double Q"] = ours(network="nature")
    workloads["ewc, the paper's network, Double Q"] = ours(network="paper")
    workloads["ewc, small network at 42x42, Double Q"] = ours(network="small", size=42)
    measured = best_seconds(workloads, ROUNDS)
    rows: list[ResultRow] = [
        {"method": name, "steps per second": STEPS / measured[name], "multiple": 1 / multiple}
        for name, multiple in ratios(measured).items()
    ]
    yield ResultTable(
        "Playing and learning Pong, batch 32 every 4 steps",
        rows,
        [f"multiple: of the speed of {next(iter(workloads))}."],
    )


def ours(**settings: Any) -> Callable[[], object]:
    """Return a workload that plays and learns for STEPS steps."""
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

    play(WARM_UP)
    return play


def stable_baselines() -> Callable[[], object]:
    """Return the same for stable-baselines3's DQN, set up as documented for Atari."""
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

    play(WARM_UP)
    return play


BATCH, UPDATE_ROUNDS, CALLS = 32, 6, 8
SIDE, CHANNELS, ACTIONS = 84, 4, 18  # of the states, and of the full set of Atari's actions
LIMIT = "product of two 1024x1024 matrices"
WHOLE = "the whole update"


WAYS_ON = {"nature": 84, "paper": 84, "small-wide": 42}  # networks, and the sides of their frames
AT_ONCE = 4  # minibatches whose targets are evaluated together


class Kernel(NamedTuple):
    """One operation of an update: how often it is done, its floating-point operations, itself."""

    name: str
    times: int
    operations: float
    call: Workload


def update_tables(*, ours_only: bool) -> Iterator[ResultTable]:
    torch.manual_seed(0)
    for double in (False, True):
        kernels = list(update_kernels(NETWORKS["nature"], forwards=3 if double else 2))
        measured = best_seconds(
            {kernel.name: repeated(kernel.call) for kernel in kernels}
            | {LIMIT: repeated(large_product()), WHOLE: repeated(update(double=double))},
            UPDATE_ROUNDS,
        )
        yield ResultTable(
            f"A minibatch of {'Double' if double else 'single'} Q, network of Mnih et al. 2015",
            update_rows(kernels, {name: value / CALLS for name, value in measured.items()}),
            [f"at the limit: at the speed of a {LIMIT}, {limit_of(measured):.0f} GFLOP/s."],
        )
    torch.set_flush_denormal(True)  # as in runs
    for network, side in WAYS_ON.items():
        calls = {name: repeated(call) for name, call in ways(network, side).items()}
        measured = best_seconds(calls, UPDATE_ROUNDS)
        rows: list[ResultRow] = [
            {"way": way, "milliseconds": 1e3 * measured[way] / CALLS, "multiple": multiple}
            for way, multiple in ratios(measured).items()
        ]
        yield ResultTable(
            f"Other ways to compute a minibatch of Double Q, network {network}, {side}x{side}",
            rows,
            ["multiple: of the time of the first row."],
        )


def limit_of(measured: dict[str, float]) -> float:
    """Return the fastest arithmetic, in GFLOP/s, from the time of `CALLS` products."""
    return CALLS * 2 * 1024**3 / measured[LIMIT] / 1e9


def update_rows(kernels: list[Kernel], measured: dict[str, float]) -> list[ResultRow]:
    """One row per kernel, the sum of all, what is left of the update, and the whole."""
    fastest = 2 * 1024**3 / measured[LIMIT]
    table = [
        _row(
            f"{kernel.times} x {kernel.name}",
            kernel.times * measured[kernel.name],
            kernel.times * kernel.operations / fastest,
        )
        for kernel in kernels
    ]
    arithmetic = sum(kernel.times * measured[kernel.name] for kernel in kernels)
    least = sum(kernel.times * kernel.operations for kernel in kernels) / fastest
    table.append(_row("all of these", arithmetic, least))
    table.append(_row("the rest of the update", measured[WHOLE] - arithmetic, 0.0))
    table.append(_row(WHOLE, measured[WHOLE], least))
    return table


def _row(name: str, seconds: float, least: float) -> ResultRow:
    return {
        "part": name,
        "milliseconds": 1000 * seconds,
        "at the limit": 1000 * least,
        "multiple": seconds / least if least else None,
    }


def update_kernels(architecture: Architecture, *, forwards: int) -> Iterator[Kernel]:
    """Yield the convolutions and matrix products of an update, layer by layer.

    Args:
        architecture: the network.
        forwards: forward passes per update: 2, or 3 for Double Q.
    """
    channels, side = CHANNELS, SIDE
    for number, (filters, kernel, stride) in enumerate(architecture.convolutions, start=1):
        inputs = _channels_last(torch.randn(BATCH, channels, side, side))
        weight = _channels_last(torch.randn(filters, channels, kernel, kernel))
        side = (side - kernel) // stride + 1
        operations = 2.0 * BATCH * filters * side**2 * channels * kernel**2
        name = f"convolution {number}"
        yield Kernel(f"{name}, forward", forwards, operations, _convolution(inputs, weight, stride))
        first = number == 1  # whose inputs need no gradient
        backward = _convolution_backward(inputs, weight, stride, inputs_too=not first)
        yield Kernel(f"{name}, backward", 1, operations * (1 if first else 2), backward)
        channels = filters
    units = channels * side**2
    for number, outputs in enumerate((architecture.hidden, ACTIONS), start=1):
        x, weight = torch.randn(BATCH, units), torch.randn(outputs, units)
        operations = 2.0 * BATCH * units * outputs
        name = f"linear layer {number}"
        yield Kernel(f"{name}, forward", forwards, operations, _linear(x, weight))
        yield Kernel(f"{name}, backward", 1, 2 * operations, _linear_backward(x, weight))
        units = outputs


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def _convolution(inputs: Tensor, weight: Tensor, stride: int) -> Workload:
    return lambda: F.conv2d(inputs, weight, stride=stride)


def _convolution_backward(
    inputs: Tensor, weight: Tensor, stride: int, *, inputs_too: bool
) -> Workload:
    gradient = torch.randn_like(F.conv2d(inputs, weight, stride=stride))
    mask = [inputs_too, True, False]
    steps, padding, dilation = [stride, stride], [0, 0], [1, 1]
    return lambda: torch.ops.aten.convolution_backward(
        gradient, inputs, weight, None, steps, padding, dilation, False, [0, 0], 1, mask
    )


def _linear(x: Tensor, weight: Tensor) -> Workload:
    return lambda: F.linear(x, weight)


def _linear_backward(x: Tensor, weight: Tensor) -> Workload:
    gradient = torch.randn(len(x), len(weight))
    return lambda: (gradient.T @ x, gradient @ weight)


def large_product() -> Workload:
    """Return the product of two matrices of 1024 x 1024."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return lambda: a @ b


def update(*, double: bool) -> Workload:
    """Return one update of our agent: a minibatch from its replay memory, loss, gradients, step."""
    settings = {**COMMON, "network": "nature", "double": double}
    learner = ContinualLearner(
        arm="single", seed=0, games=["Pong"], schedule=["Pong"], config=AgentConfig(**settings)
    )
    learner.play(max_rows=40)
    replay, random = learner.experience.replays[0], np.random.default_rng(0)
    return lambda: learner.agent.learn(replay.sample(BATCH, random))


def ways(network: str, side: int) -> dict[str, Workload]:
    """Return minibatches of Double Q by how they are computed, as it is done first.

    All but the first change what is learned, if only by roundings.
    """
    config = AgentConfig(network=network, optimizer="adam", lr=COMMON["lr"])
    agent = Agent(config, (CHANNELS, side, side), ACTIONS, seed=0)
    learning, batch = agent.learning, _transitions(BATCH, side)
    several = _transitions(AT_ONCE * BATCH, side)

    def step(loss: Tensor) -> None:
        agent.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        agent.optimizer.step()

    def as_it_is() -> None:
        step(learning.td_loss(batch, learning.td_targets(batch)))

    def one_pass() -> None:
        states, after = (learning.tensor(part) for part in (batch.states, batch.next_states))
        with torch.no_grad():
            best_of = learning.target(after, folded=True)
        values, chooser = learning.network(torch.cat([states, after]), folded=True).split(BATCH)
        best = best_of.gather(1, chooser.detach().argmax(1, keepdim=True)).squeeze(1)
        y = learning.tensor(batch.rewards) + learning.tensor(batch.discounts) * best
        taken = values.gather(1, learning.tensor(batch.actions)[:, None]).squeeze(1)
        step(F.smooth_l1_loss(taken, y))

    def targets_at_once() -> None:
        if next(turn) % AT_ONCE == 0:
            learning.td_targets(several)
        step(learning.td_loss(batch, zeros))

    def bfloat16() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = learning.td_loss(batch, learning.td_targets(batch).float())
        step(loss)

    turn, zeros = count(), torch.zeros(BATCH)
    return {
        "as it is": as_it_is,
        "one pass for chooser and values": one_pass,
        f"targets of {AT_ONCE} minibatches at once": targets_at_once,
        "passes in bfloat16": bfloat16,
    }


def _transitions(number: int, side: int) -> Transitions:
    random = np.random.default_rng(0)
    states = random.integers(0, 256, (2, number, CHANNELS, side, side), dtype=np.uint8)
    return Transitions(
        states[0],
        random.integers(0, ACTIONS, number),
        random.standard_normal(number).astype(np.float32),
        states[1],
        np.full(number, 0.99, np.float32),
    )


def repeated(call: Workload) -> Workload:
    """Return a workload of several calls, which are too short to be measured one by one."""

    def calls() -> None:
        for _ in range(CALLS):
            call()

    return calls
