"""The agent: Double Q-learning with one network for all contexts, protected by EWC.

`Agent` is the whole of it. Below it, in the order in which it uses them: how it explores, its loss
(`QLearning`), its optimizer (`CappedRMSProp`), the average of its parameters (`ParameterAverage`),
and the Fisher with which it consolidates a task (`q_network_fisher`).
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from ewc import EWC, KroneckerFisher, fisher_diagonal, fisher_kronecker
from ewc.memory import Curvature
from ewc.step_size import ParamGroup, ParamState, StepSize, moments
from ewc_paper.device import on_device, training_device
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.network import NETWORKS, SHARED, Architecture, QNetwork
from ewc_paper.games.replay import Transitions

Fisher = dict[str, Tensor] | KroneckerFisher


class Agent:
    """Plays and learns in one context at a time; `enter` changes it.

    Args:
        config: its network, learning and memory of tasks.
        state_shape: channels, height and width of a state.
        num_actions: number of actions.
        seed: seed of the initial weights.
        wells: what its memory remembers a task as.
        architecture: its network, if it is another than the config names.
    """

    def __init__(
        self,
        config: AgentConfig,
        state_shape: tuple[int, int, int],
        num_actions: int,
        seed: int,
        *,
        wells: Curvature = "diagonal",
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
            strength=config.strength if wells == "diagonal" else config.kronecker_strength,
            curvature=wells,
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
        self.memory.settle()  # a pull that waits belongs to the parameters, not to their average
        self._average.adopt(self._parameters())

    def fisher(self, batches: Iterable[Transitions], random: np.random.Generator) -> Fisher:
        """Return the Fisher of the shared weights in the present context, as the memory needs it.

        Args:
            batches: minibatches of the context's replay memory.
            random: source of randomness for the Fisher.
        """
        self.memory.settle()  # or it would be taken when the Fisher runs the network
        if self.memory.curvature == "kronecker":
            return q_network_factors(self.learning, batches, random)
        return q_network_fisher(self.learning, batches, random)

    def consolidate(self, batches: Iterable[Transitions], random: np.random.Generator) -> Fisher:
        """Remember the shared weights as the solution of the present context.

        Args:
            batches: minibatches of the context's replay memory.
            random: source of randomness for the Fisher.

        Returns:
            The Fisher, before the floor is added and the trace is normalized.
        """
        fisher = self.fisher(batches, random)
        self.remember(fisher, str(self.context))
        return fisher

    def remember(self, fisher: Fisher, task: str) -> Fisher:
        """Remember the shared weights with a given Fisher; return it as it was stored.

        A diagonal is shaped by the options for it. Kronecker factors stay as they are: the trace of
        all layers says nothing about one of them, and the first convolution has most of it.
        """
        if isinstance(fisher, KroneckerFisher):
            return self.memory.consolidate(fisher, task=task)
        floor, trace = self.config.floor, self.config.normalize
        return self.memory.consolidate(fisher, task=task, floor=floor, normalize=trace)

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
        self._left_out.close()
        while len(self.network.contexts) < state["contexts"]:
            self.add_context()
        self.memory.load_state_dict(state["memory"])
        self._leave_out(state["context"])
        # Again, and before the networks: leaving a well out takes the pull that waits, and the
        # forces that were held with it.
        self.memory.load_state_dict(state["memory"])
        self.network.load_state_dict(state["network"])
        self.target.load_state_dict(state["target"])
        self._renew_optimizer()
        optimizer = self.optimizer.state_dict()
        optimizer["state"] = {int(k): v for k, v in state["optimizer"].items()}
        self.optimizer.load_state_dict(optimizer)
        self._average.load_state_dict(on_device(state["average"], self.learning.device))
        self.network.enter(state["context"])
        self.target.enter(state["context"])


def exploration_rate(agent_steps: int, *, start: int, end: int, final: float) -> float:
    """Return ε, how often the agent acts at random; it falls linearly from 1 to its final value.

    Args:
        agent_steps: steps played so far in the present context.
        start: steps at which ε starts to fall.
        end: steps at which it has reached its final value.
        final: that value.
    """
    passed = min(1.0, max(0.0, (agent_steps - start) / max(1, end - start)))
    return 1.0 + (final - 1.0) * passed


def epsilon_greedy(
    values: Tensor, epsilon: float, random: np.random.Generator
) -> NDArray[np.int64]:
    """Return one action per row of values [n, actions]: random with probability `epsilon`."""
    explore = random.random(len(values)) < epsilon
    anything = random.integers(0, values.shape[1], len(values))
    return np.where(explore, anything, values.argmax(1).cpu().numpy())


@dataclass(frozen=True)
class QLearning:
    """The loss of Double Q-learning.

        y = r + γⁿ Q_target(s', argmax_a Q(s', a)),   loss = mean of h(Q(s, a) − y)

    with h the Huber loss, whose gradient is the TD error clipped to ±1.

    Args:
        network: the network that learns.
        target: a copy of it that is synchronized from time to time.
        double: let the network choose the next action that the target network evaluates.
        device: where both networks are.
    """

    network: QNetwork
    target: QNetwork
    double: bool
    device: torch.device

    def td_targets(self, transitions: Transitions) -> Tensor:
        """Return y of each transition, without a gradient."""
        with torch.no_grad():
            next_states = self.network.scaled(self.tensor(transitions.next_states))
            values = self.target(next_states, folded=True)
            chooser = self.network(next_states, folded=True) if self.double else values
            best = values.gather(1, chooser.argmax(1, keepdim=True)).squeeze(1)
            rewards, discounts = self.tensor(transitions.rewards), transitions.discounts
            y: Tensor = rewards + self.tensor(discounts) * best
        return y

    def td_loss(self, transitions: Transitions, y: Tensor) -> Tensor:
        """Return the mean Huber loss of Q(s, a) against y."""
        actions = self.tensor(transitions.actions)[:, None]
        values = self.network(self.tensor(transitions.states), folded=True)
        return F.smooth_l1_loss(values.gather(1, actions).squeeze(1), y)

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """Return the array as a tensor on the device of the networks."""
        return torch.from_numpy(array).to(self.device)


def make_optimizer(config: AgentConfig, parameters: list[nn.Parameter]) -> Optimizer:
    """Return the paper's RMSProp, or Adam."""
    if config.optimizer == "adam":
        return Adam(parameters, lr=config.lr, eps=config.adam_epsilon, fused=True)
    # The reference implementation sums the gradients of a minibatch, and these are means: a
    # maximum rate larger by the same factor makes the steps equal.
    return CappedRMSProp(parameters, lr=config.lr, max_lr=config.max_lr * config.batch_size)


class CappedRMSProp(Optimizer):
    """The RMSProp of the paper's agent, which limits the learning rate of each weight to a maximum.

        v ← α v + (1 − α) g²,   m ← α m + (1 − α) g,   θ ← θ − η g / √(v − m² + ε²),   ε = η / max

    As in the reference implementation ε is inside the root. There it also avoids the roots of zero,
    which take CPUs several times as long: about half of the weights belong to dead units.

    Args:
        parameters: the weights.
        lr: learning rate η.
        max_lr: largest rate that is applied to any weight.
        alpha: decay of the averages m and v per step.
    """

    def __init__(
        self, parameters: list[nn.Parameter], *, lr: float, max_lr: float, alpha: float = 0.95
    ) -> None:
        super().__init__(parameters, {"lr": lr, "max_lr": max_lr, "alpha": alpha})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # takes no closure
        """Update all weights that have a gradient."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            states = [self._state(parameter) for parameter in parameters]
            gradients = [parameter.grad for parameter in parameters]
            squares = [state["square_avg"] for state in states]
            means = [state["grad_avg"] for state in states]
            torch._foreach_mul_(squares, group["alpha"])
            torch._foreach_addcmul_(squares, gradients, gradients, 1 - group["alpha"])
            torch._foreach_lerp_(means, gradients, 1 - group["alpha"])
            torch._foreach_addcdiv_(
                parameters, gradients, _roots(group, squares, means), -group["lr"]
            )

    def step_size(
        self, group: ParamGroup, parameters: Sequence[Tensor], states: Sequence[ParamState]
    ) -> StepSize:
        """Return η / √(v − m² + ε²) of each weight, for the proximal pull of EWC."""
        squares, means = (moments(key, parameters, states) for key in ("square_avg", "grad_avg"))
        return StepSize(group["lr"], _roots(group, squares, means))

    def _state(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["square_avg"] = torch.zeros_like(parameter)
            state["grad_avg"] = torch.zeros_like(parameter)
        return state


def _roots(group: ParamGroup, squares: list[Tensor], means: list[Tensor]) -> list[Tensor]:
    """Return √(v − m² + ε²)."""
    roots = list(torch._foreach_addcmul(squares, means, means, value=-1))
    torch._foreach_clamp_min_(roots, 0.0)  # rounding can make them negative
    torch._foreach_add_(roots, (group["lr"] / group["max_lr"]) ** 2)
    torch._foreach_sqrt_(roots)
    return roots


class ParameterAverage:
    """The mean over the first `span` updates, and an exponential average from then on.

    Q-learning keeps oscillating, and the policy of one moment can be far worse than the average's.
    With a span of 0 nothing is averaged, and the parameters always stay as they are.
    """

    def __init__(self, span: int) -> None:
        self._span = span
        self.restart()

    def restart(self) -> None:
        """Forget all updates."""
        self._average: list[Tensor] = []
        self._updates = 0  # that the average is over, at most the span

    @torch.no_grad()
    def update(self, parameters: Iterable[Tensor]) -> None:
        """Include the present parameters."""
        if self._span == 0:
            return
        present = list(parameters)
        if self._updates == 0:
            self._average = [torch.zeros_like(parameter) for parameter in present]
        self._updates = min(self._updates + 1, self._span)
        torch._foreach_lerp_(self._average, present, 1 / self._updates)

    @contextmanager
    def applied(self, parameters: list[Tensor]) -> Iterator[None]:
        """Replace the parameters by their average while the block runs."""
        if self._updates == 0:
            yield
            return
        present = [parameter.detach().clone() for parameter in parameters]
        copy_parameters(self._average, parameters)
        try:
            yield
        finally:
            copy_parameters(present, parameters)

    def adopt(self, parameters: list[Tensor]) -> None:
        """Replace the parameters by their average, and restart it."""
        if self._updates > 0:
            copy_parameters(self._average, parameters)
        self.restart()

    def state_dict(self) -> dict[str, Any]:
        return {
            "average": {str(number): tensor for number, tensor in enumerate(self._average)},
            "updates": self._updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._average = [state["average"][str(i)] for i in range(len(state["average"]))]
        self._updates = state["updates"]


@torch.no_grad()
def copy_parameters(source: list[Tensor], destination: list[Tensor]) -> None:
    """Copy the values of one list of parameters into those of another."""
    torch._foreach_copy_(destination, source)


def q_network_fisher(
    learning: QLearning, batches: Iterable[Transitions], random: np.random.Generator
) -> dict[str, Tensor]:
    """Return the Fisher diagonal of the shared weights, in the present context of the network.

        F = E_s [Σ_a (∂Q(s, a)/∂θ)²]

    The paper does not say which Fisher a Q-network has. This is that of Q as the mean of a Gaussian
    of unit variance, estimated from minibatches of the task's replay memory.

    Args:
        learning: the network that is consolidated.
        batches: minibatches of the task.
        random: source of the random signs that all actions are covered with.
    """
    return fisher_diagonal(learning.network, _signs(learning, batches, random), **_GAUSSIAN)


def q_network_factors(
    learning: QLearning, batches: Iterable[Transitions], random: np.random.Generator
) -> KroneckerFisher:
    """Return the same Fisher as two factors per layer; see `q_network_fisher` for the arguments."""
    return fisher_kronecker(learning.network, _signs(learning, batches, random), **_GAUSSIAN)


def _signs(
    learning: QLearning, batches: Iterable[Transitions], random: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield states, and a random sign per action: E_s [(Σ_a s_a ∂Q_a)²] = Σ_a (∂Q_a)².

    With these, one backward pass covers all actions.
    """
    num_actions = learning.network.widths[-1]
    for batch in batches:
        signs = random.integers(0, 2, (len(batch.states), num_actions)) * 2 - 1
        yield learning.tensor(batch.states), torch.from_numpy(signs)


def _signed_sum(values: Tensor, signs: Tensor | None) -> Tensor:
    assert signs is not None
    return (values * signs.to(values)).sum(1)


# The options of a Fisher of the shared weights, of a Gaussian around Q.
_GAUSSIAN: dict[str, Any] = {
    "kind": "empirical",
    "likelihood": _signed_sum,
    "parameters": SHARED,
}
