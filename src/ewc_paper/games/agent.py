"""The agent: Double Q-learning with one network for all contexts, protected by EWC."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from ewc.memory import EWC
from ewc_paper.device import on_device, training_device
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.consolidation import q_network_fisher
from ewc_paper.games.network import NETWORKS, SHARED, Architecture, QNetwork
from ewc_paper.games.parameter_average import ParameterAverage, copy_parameters
from ewc_paper.games.q_learning import QLearning
from ewc_paper.games.replay import Transitions
from ewc_paper.games.rmsprop import CappedRMSProp


class Agent:
    """Plays and learns in one context at a time; `enter` changes it.

    Args:
        config: its network, learning and memory of tasks.
        state_shape: channels, height and width of a state.
        num_actions: number of actions.
        seed: seed of the initial weights.
        architecture: its network, if it is another than the config names.
    """

    def __init__(
        self,
        config: AgentConfig,
        state_shape: tuple[int, int, int],
        num_actions: int,
        seed: int,
        *,
        architecture: Architecture | None = None,
    ) -> None:
        self.config = config
        device = training_device()
        layers = architecture or NETWORKS[config.network]
        self.network = QNetwork(layers, state_shape, num_actions, seed).to(device)
        self.target = QNetwork(layers, state_shape, num_actions, seed).to(device)
        self.learning = QLearning(self.network, self.target, config.double, device)
        self.memory = EWC(
            self.network,
            strength=config.strength,
            parameters=SHARED,
            keep_tasks=True,
        )
        self.optimizer: Optimizer
        self._left_out = ExitStack()  # the present context's own well, which does not pull
        self.add_context()
        self._renew_optimizer()
        self._average = ParameterAverage(config.average_span)
        self.network.enter(0)
        self.target.enter(0)

    @property
    def context(self) -> int:
        return self.network.context

    @property
    def tasks(self) -> tuple[str, ...]:
        """The contexts that are remembered."""
        return self.memory.tasks

    def add_context(self) -> None:
        """Give both networks one more context."""
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
        if new or self.config.fresh_optimizer:
            self._renew_optimizer(keep=not self.config.fresh_optimizer)
        self._average.restart()

    def forget(self, context: int) -> None:
        """Let nothing pull toward the solution of this context any more."""
        if str(context) in self.memory.tasks:
            self.memory.forget(str(context))

    def act_in(self, context: int) -> None:
        """Act in this context for a while, as in a test; learning needs `enter`."""
        self.network.enter(context)

    def _leave_out(self, context: int) -> None:
        self._left_out.close()
        if str(context) in self.memory.tasks:
            self._left_out.enter_context(self.memory.without(str(context)))

    def _renew_optimizer(self, *, keep: bool = False) -> None:
        """Make an optimizer of all present parameters; `keep` the moments of the old one."""
        state = dict(self.optimizer.state) if keep else {}
        self.optimizer = make_optimizer(self.config, list(self.network.parameters()))
        self.optimizer.state.update(state)
        self.memory.attach(self.optimizer, how=self.config.how)

    @torch.no_grad()
    def act(
        self, states: NDArray[np.uint8], epsilon: float, random: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return one action per state.

        Args:
            states: uint8 [n, channels, height, width].
            epsilon: probability of a random action instead of the greedy one.
            random: source of the random actions.
        """
        values: Tensor = self.network(self.learning.tensor(states), folded=True)
        return epsilon_greedy(values, epsilon, random)

    @torch.no_grad()
    def action_values(self, states: Tensor) -> Tensor:
        """Return Q(s, ·) of states [n, channels, height, width], on the CPU."""
        values: Tensor = self.network(states.to(self.learning.device))
        return values.cpu()

    def learn(self, transitions: Transitions) -> float:
        """Take one step of the optimizer, with the pull of the memory; return the loss."""
        loss = self.learning.td_loss(transitions, self.learning.td_targets(transitions))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._clip_gradients()
        self.optimizer.step()
        self._average.update(self.network.parameters())
        return float(loss.detach())

    def _clip_gradients(self) -> None:
        # The reference implementation clips the sum over a minibatch, and this is the mean.
        limit = self.config.max_gradient_norm / self.config.batch_size
        parameters = self.optimizer.param_groups[0]["params"]
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = float(nn.utils.get_total_norm(gradients))
        if norm > limit:  # scaling all gradients by 1 would take as long as finding the norm
            torch._foreach_mul_(gradients, limit / norm)

    def update_target(self) -> None:
        """Copy the network to the target network."""
        copy_parameters(self._parameters(), list(self.target.parameters()))

    def averaged(self) -> AbstractContextManager[None]:
        """Use the average of the parameters since the context was entered while a block runs."""
        return self._average.applied(self._parameters())

    def adopt_average(self) -> None:
        """Replace the parameters by their average, and start another average."""
        self._average.adopt(self._parameters())

    def fisher(
        self, batches: Iterable[Transitions], random: np.random.Generator
    ) -> dict[str, Tensor]:
        """Return the Fisher diagonal of the shared weights in the present context."""
        return q_network_fisher(self.learning, batches, random)

    def consolidate(
        self, batches: Iterable[Transitions], random: np.random.Generator
    ) -> dict[str, Tensor]:
        """Remember the shared weights as the solution of the present context.

        Args:
            batches: minibatches of the context's replay memory.
            random: source of randomness for the Fisher.

        Returns:
            The Fisher diagonal, before the floor is added and the trace is normalized.
        """
        fisher = self.fisher(batches, random)
        self.memory.consolidate(
            fisher,
            task=str(self.context),
            floor=self.config.floor,
            normalize=self.config.normalize,
        )
        return fisher

    def _parameters(self) -> list[Tensor]:
        return list(self.network.parameters())

    def state_dict(self) -> dict[str, Any]:
        """Return networks, optimizer, memory and average, as tensors and plain values."""
        return {
            "contexts": len(self.network.contexts),
            "context": self.context,
            "network": self.network.state_dict(),
            "target": self.target.state_dict(),
            "memory": self.memory.state_dict(),
            "average": self._average.state_dict(),
            "optimizer": {str(k): v for k, v in self.optimizer.state_dict()["state"].items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of an agent with the same config."""
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
        self._average.load_state_dict(on_device(state["average"], self.learning.device))
        self.network.enter(state["context"])
        self.target.enter(state["context"])
        self._leave_out(state["context"])


def epsilon_greedy(
    values: Tensor, epsilon: float, random: np.random.Generator
) -> NDArray[np.int64]:
    """Return one action per row of values [n, actions]: random with probability `epsilon`."""
    explore = random.random(len(values)) < epsilon
    anything = random.integers(0, values.shape[1], len(values))
    return np.where(explore, anything, values.argmax(1).cpu().numpy())


def make_optimizer(config: AgentConfig, parameters: list[nn.Parameter]) -> Optimizer:
    """Return the paper's RMSProp, or Adam."""
    if config.optimizer == "adam":
        return Adam(parameters, lr=config.lr, eps=config.adam_epsilon, fused=True)
    # The reference implementation sums the gradients of a minibatch, and these are means: a
    # maximum rate larger by the same factor makes the steps equal.
    return CappedRMSProp(parameters, lr=config.lr, max_lr=config.max_lr * config.batch_size)
