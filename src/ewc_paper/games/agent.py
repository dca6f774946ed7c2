"""The agent: Double Q-learning with one network for all contexts, and EWC's pull on its weights.

    y = r + γⁿ Q_target(s', argmax_a Q(s', a)),   loss = mean of h(Q(s, a) − y)

with h the Huber loss, whose gradient is the TD error clipped to ±1.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from ewc.memory import EWC
from ewc_paper.games.config import Settings
from ewc_paper.games.network import SHARED, QNetwork
from ewc_paper.games.replay import Batch
from ewc_paper.games.rmsprop import CappedRMSProp


class Agent:
    """Plays and learns in one context at a time; `enter` changes it."""

    def __init__(
        self, settings: Settings, state_shape: tuple[int, int, int], num_actions: int, seed: int
    ) -> None:
        self.settings = settings
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = QNetwork(settings.network, state_shape, num_actions, seed).to(self.device)
        self.target = QNetwork(settings.network, state_shape, num_actions, seed).to(self.device)
        self.memory = EWC(
            self.network,
            strength=settings.resolved_strength,
            parameters=SHARED,
            keep_tasks=True,
        )
        self.num_actions = num_actions
        self.optimizer: Optimizer
        self._left_out = ExitStack()
        self.add_context()
        self._renew_optimizer()
        self._average: list[Tensor] = []
        self._averaged = 0  # updates that the average is over
        self.network.enter(0)
        self.target.enter(0)

    @property
    def context(self) -> int:
        return self.network.context

    def add_context(self) -> None:
        """Make room for one context more."""
        self.network.add_context()
        self.target.add_context()

    def enter(self, context: int) -> None:
        """Play and learn in this context from now on, without the pull of its own old well."""
        new = context >= len(self.network.contexts)
        while context >= len(self.network.contexts):
            self.add_context()
        self.network.enter(context)
        self.target.enter(context)
        self._leave_out(context)
        if new or self.settings.fresh_optimizer:
            self._renew_optimizer(keep=not self.settings.fresh_optimizer)
        self._forget_average()
        self.update_target()

    def show(self, context: int) -> None:
        """Act in this context for a while, as in a test; learning needs `enter`."""
        self.network.enter(context)

    def _leave_out(self, context: int) -> None:
        self._left_out.close()
        if str(context) in self.memory.tasks:
            self._left_out.enter_context(self.memory.without(str(context)))

    def _renew_optimizer(self, *, keep: bool = False) -> None:
        """An optimizer over all parameters there are now, with the old one's moments if wished."""
        state = dict(self.optimizer.state) if keep else {}
        self.optimizer = make_optimizer(self.settings, list(self.network.parameters()))
        self.optimizer.state.update(state)
        self.memory.attach(self.optimizer, how=self.settings.how)

    @torch.no_grad()
    def act(
        self, states: NDArray[np.uint8], epsilon: float, random: np.random.Generator
    ) -> NDArray[np.int64]:
        """Greedy actions, a fraction ε of them replaced by random ones."""
        values: Tensor = self.network(self._tensor(states), folded=True)
        explore = random.random(len(states)) < epsilon
        anything = random.integers(0, self.num_actions, len(states))
        return np.where(explore, anything, values.argmax(1).cpu().numpy())

    def td_targets(self, batch: Batch) -> Tensor:
        """y, which no gradient flows through."""
        with torch.no_grad():
            next_states = self.network.scaled(self._tensor(batch.next_states))
            values = self.target(next_states, folded=True)
            chooser = self.network(next_states, folded=True) if self.settings.double else values
            best = values.gather(1, chooser.argmax(1, keepdim=True)).squeeze(1)
            y: Tensor = self._tensor(batch.rewards) + self._tensor(batch.discounts) * best
        return y

    def td_loss(self, batch: Batch, y: Tensor) -> Tensor:
        """The mean Huber loss of Q(s, a) against y."""
        actions = self._tensor(batch.actions)[:, None]
        q = self.network(self._tensor(batch.states), folded=True).gather(1, actions).squeeze(1)
        return F.smooth_l1_loss(q, y)

    def learn(self, batch: Batch) -> float:
        """One step of the optimizer, with the pull; returns the loss."""
        loss = self.td_loss(batch, self.td_targets(batch))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._clip_gradients()
        self.optimizer.step()
        self._follow()
        return float(loss.detach())

    def _clip_gradients(self) -> None:
        # The reference implementation clips the sum over a minibatch where we have the mean.
        limit = self.settings.max_gradient_norm / self.settings.batch_size
        parameters = self.optimizer.param_groups[0]["params"]
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = float(nn.utils.get_total_norm(gradients))
        if norm > limit:  # which is rare, and scaling all by 1 takes as long as finding the norm
            torch._foreach_mul_(gradients, limit / norm)

    def update_target(self) -> None:
        _copy(list(self.network.parameters()), list(self.target.parameters()))

    @torch.no_grad()
    def _follow(self) -> None:
        """Let the average take in the present parameters: a plain mean, then a running one."""
        if self.settings.average_span == 0:
            return
        parameters: list[Tensor] = list(self.network.parameters())
        if self._averaged == 0:
            self._average = [torch.zeros_like(parameter) for parameter in parameters]
        self._averaged = min(self._averaged + 1, self.settings.average_span)
        torch._foreach_lerp_(self._average, parameters, 1 / self._averaged)

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Compute with the average since the last `settle` or `enter` while the block runs.

        Q-learning goes on oscillating, and the policy of one moment may be far below the average's.
        """
        if self._averaged == 0:
            yield
            return
        parameters: list[Tensor] = list(self.network.parameters())
        moving = [parameter.detach().clone() for parameter in parameters]
        _copy(self._average, parameters)
        try:
            yield
        finally:
            _copy(moving, parameters)

    def settle(self) -> None:
        """Put the average in place of the parameters, and begin another."""
        if self._averaged > 0:
            _copy(self._average, list(self.network.parameters()))
        self._forget_average()

    def _forget_average(self) -> None:
        self._average, self._averaged = [], 0

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Networks, optimizer and memory, as tensors and plain values."""
        return {
            "contexts": len(self.network.contexts),
            "context": self.context,
            "network": self.network.state_dict(),
            "target": self.target.state_dict(),
            "memory": self.memory.state_dict(),
            "average": {str(number): tensor for number, tensor in enumerate(self._average)},
            "averaged": self._averaged,
            "optimizer": {str(k): v for k, v in self.optimizer.state_dict()["state"].items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was called, in an agent of the same settings."""
        while len(self.network.contexts) < state["contexts"]:
            self.add_context()
        self.network.load_state_dict(state["network"])
        self.target.load_state_dict(state["target"])
        self._left_out.close()
        self.memory.load_state_dict(state["memory"])
        self._renew_optimizer()
        optimizer = self.optimizer.state_dict()
        optimizer["state"] = {int(k): v for k, v in state["optimizer"].items()}
        self.optimizer.load_state_dict(optimizer)
        self._average = [state["average"][str(i)] for i in range(len(state["average"]))]
        self._averaged = state["averaged"]
        self.network.enter(state["context"])
        self.target.enter(state["context"])
        self._leave_out(state["context"])


@torch.no_grad()
def _copy(values: list[Tensor], parameters: list[Tensor]) -> None:
    torch._foreach_copy_(parameters, values)


def make_optimizer(settings: Settings, parameters: list[nn.Parameter]) -> Optimizer:
    """The paper's RMSProp, or Adam."""
    if settings.optimizer == "adam":
        return Adam(parameters, lr=settings.lr, eps=settings.adam_epsilon, fused=True)
    # The reference implementation adds up the gradients of a minibatch where we average them: a
    # maximum rate as much larger makes the steps the same.
    return CappedRMSProp(parameters, lr=settings.lr, max_lr=settings.max_lr * settings.batch_size)
