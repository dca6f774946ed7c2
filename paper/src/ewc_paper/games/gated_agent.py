"""An agent whose contexts each use a part of one network: `Agent` on the part in use.

`Gates` says which part that is; `GatedAgent` trains it.

The weights of all contexts are in a pool. When a context is entered, its part is cut from the pool
and trained as a small network of its own, pulled toward the solutions of the other contexts where
they use the same weights. When it is left, its part is written back. Weights that a context does
not use stay as they are while it is trained.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ewc import EWC, KroneckerFactors, KroneckerFisher
from ewc.memory import Curvature
from ewc_paper.device import on_device
from ewc_paper.games.agent import Agent, Fisher, epsilon_greedy
from ewc_paper.games.config import AgentConfig, Arm
from ewc_paper.games.network import NETWORKS, SHARED, Architecture, QNetwork
from ewc_paper.games.replay import Transitions
from ewc_paper.seeding import derive_seed

Weights = dict[str, Tensor]  # by name of the parameter
Factors = dict[str, KroneckerFactors]  # by name of the weight


def narrowed(architecture: Architecture, gates: float, filter_gates: float) -> Architecture:
    """Return the part of a network that one context uses.

    Args:
        architecture: the whole network.
        gates: fraction of the hidden units that a context does without.
        filter_gates: the same for the filters of each convolution.
    """
    convolutions = tuple(
        (_open(filters, filter_gates), kernel, stride)
        for filters, kernel, stride in architecture.convolutions
    )
    return Architecture(convolutions, _open(architecture.hidden, gates))


def _open(width: int, closed: float) -> int:
    return width - int(closed * width)


class Gates:
    """Which units of a network each context uses, a random part of each layer.

        W_c = W[units of c in the layer, units of c in the layer before]

    All contexts cut their weights from one pool. Two contexts share only the weights between units
    that both use (context-dependent gating, Masse et al. 2018). It is the same as gains of zero
    behind which units are closed, the paper's own mechanism, but costs as much as the network that
    is left.

    Args:
        whole: the network with all units.
        part: the network that one context uses, see `narrowed`.
        seed: seed of the choice of units, together with the number of the context.
    """

    def __init__(self, whole: QNetwork, part: QNetwork, seed: int) -> None:
        self._widths = list(zip(whole.widths, part.widths, strict=True))
        self._seed = seed
        self._units: dict[int, list[Tensor]] = {}

    def units(self, context: int) -> list[Tensor]:
        """Return the indices of the units that a context uses, by layer, in ascending order."""
        if context not in self._units:
            generator = torch.Generator().manual_seed(derive_seed(self._seed, "gates", context))
            self._units[context] = [
                (torch.randperm(width, generator=generator) >= width - used).nonzero().squeeze(1)
                for width, used in self._widths
            ]
        return self._units[context]

    def cut(self, pool: Mapping[str, Tensor], context: int) -> dict[str, Tensor]:
        """Return the weights of a context, copied from those of the whole network, by name."""
        return {name: weight[self._places(name, weight, context)] for name, weight in pool.items()}

    def put(self, part: Mapping[str, Tensor], context: int, pool: Mapping[str, Tensor]) -> None:
        """Write the weights of a context back into those of the whole network."""
        for name, weight in pool.items():
            weight[self._places(name, weight, context)] = part[name]

    def moved(
        self, part: Mapping[str, Tensor], context: int, other: int, pool: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return one value per weight, of one context for another; 0 for weights not in common."""
        whole = {name: torch.zeros_like(weight) for name, weight in pool.items()}
        self.put(part, context, whole)
        return self.cut(whole, other)

    def moved_factors(
        self, factors: Factors, context: int, other: int, pool: Mapping[str, Tensor]
    ) -> Factors:
        """Return the factors per layer of one context for another, as `moved` does.

        The weights in common are some rows and columns of a layer's matrix, so that their block of
        G ⊗ A is the product of the blocks of G and A.
        """
        moved = {}
        for name, own in factors.items():
            weight, area = pool[name], pool[name][0, 0].numel()
            ends = [self._places(name, weight, one) for one in (context, other)]
            rows = [places.flatten() for places, _ in ends]
            columns = [_entries(places, area) for _, places in ends]
            moved[name] = KroneckerFactors(
                _between(own.inputs, weight[0].numel(), *columns),
                _between(own.outputs, len(weight), *rows),
                positions=own.positions,
            )
        return moved

    def _places(self, name: str, weight: Tensor, context: int) -> tuple[Tensor, Tensor]:
        """Return rows and columns of a context in the weights `layers.<number>.weight`."""
        number, units = int(name.split(".")[1]), self.units(context)
        rows = units[number].to(weight.device)
        if number == 0:
            columns = torch.arange(weight.shape[1], device=weight.device)
        else:
            # A linear layer after a convolution sees all filters of a place before the next place.
            inputs, width = units[number - 1].to(weight.device), self._widths[number - 1][0]
            starts = torch.arange(0, weight.shape[1], width, device=weight.device)
            columns = (starts[:, None] + inputs).flatten()
        return rows[:, None], columns


def _entries(places: Tensor, area: int) -> Tensor:
    """Return the numbers of inputs in `weight.flatten(1)`, of channels with so many entries."""
    return (places[:, None] * area + torch.arange(area, device=places.device)).flatten()


def _between(matrix: Tensor, size: int, source: Tensor, target: Tensor) -> Tensor:
    """Return the block at `target` of a matrix of this size that is zero but at `source`."""
    whole = matrix.new_zeros(size, size)
    whole[source[:, None], source] = matrix
    return whole[target[:, None], target]


class Solution(NamedTuple):
    """What is remembered of a context.

    Attributes:
        precision: by name, a tensor for each weight that it uses, or `KroneckerFactors`.
        anchor: the values of these weights; with factors, those of the whole network, because all
            contexts then have one center.
    """

    precision: dict[str, Any]
    anchor: Weights


class GatedAgent:
    """Plays and learns in one context at a time, as `Agent` does; moments always start anew.

    Args:
        config: its network, gates, learning and memory of tasks.
        state_shape: channels, height and width of a state.
        num_actions: number of actions.
        seed: seed of the initial weights and of the gates.
        wells: what its memory remembers a task as.
    """

    def __init__(
        self,
        config: AgentConfig,
        state_shape: tuple[int, int, int],
        num_actions: int,
        seed: int,
        *,
        wells: Curvature = "diagonal",
    ) -> None:
        self.config, self._wells = config, wells
        whole = NETWORKS[config.network]
        self._part = narrowed(whole, config.gates, config.filter_gates)
        self._shape = state_shape, num_actions, seed
        self._agent = self._make_agent()
        network = QNetwork(whole, *self._shape).to(self._agent.learning.device)
        self._gates = Gates(network, self._agent.network, seed)
        # Of the network and of the target network: shared weights, and what belongs to contexts.
        self._pools = [_shared(network), _shared(network)]
        self._own: list[dict[int, Weights]] = [{}, {}]
        self._solutions: dict[int, Solution] = {}
        self._acting: dict[int, QNetwork] = {}  # other contexts' networks, for a while
        self._start(0)

    def _make_agent(self) -> Agent:
        return Agent(self.config, *self._shape, wells=self._wells, architecture=self._part)

    @property
    def context(self) -> int:
        """The context that it acts in."""
        return self._context

    @property
    def tasks(self) -> tuple[str, ...]:
        """The contexts that are remembered."""
        return tuple(map(str, self._solutions))

    def enter(self, context: int) -> None:
        """Play and learn in this context from now on, without the pull of its own old well."""
        self._put_back()
        self._start(context)

    def _networks(self) -> tuple[QNetwork, QNetwork]:
        return self._agent.network, self._agent.target

    def _put_back(self) -> None:
        """Write what was trained to the pool."""
        for network, pool, own in zip(self._networks(), self._pools, self._own, strict=True):
            self._gates.put(_shared(network), self._trained, pool)
            own[self._trained] = _of_context(network)

    def _start(self, context: int) -> None:
        """Cut a context from the pool, to be trained."""
        self._context = self._trained = context
        self._acting.clear()
        self._agent = self._make_agent()
        self._agent.memory.load_state_dict(self._other_solutions().state_dict())
        for network, pool, own in zip(self._networks(), self._pools, self._own, strict=True):
            _load(network, self._gates.cut(pool, context) | own.get(context, {}))

    def _other_solutions(self) -> EWC:
        """Return a memory of all contexts but the trained one, on the weights in common."""
        agent, gates, pool = self._make_agent(), self._gates, self._pools[0]
        for context, (precision, anchor) in self._solutions.items():
            if context == self._trained:
                continue
            places = context, self._trained
            if self._wells == "kronecker":
                factors = gates.moved_factors(precision, *places, pool)
                _load(agent.network, gates.cut(anchor, self._trained))
                agent.memory.consolidate(KroneckerFisher(factors), task=_task(context))
            else:
                _load(agent.network, gates.moved(anchor, *places, pool))
                agent.memory.anchor(gates.moved(precision, *places, pool), task=_task(context))
        return agent.memory

    def forget(self, context: int) -> None:
        """Let nothing pull toward the solution of this context any more."""
        self._solutions.pop(context, None)
        if _task(context) in self._agent.tasks:
            self._agent.memory.forget(_task(context))

    def act_in(self, context: int) -> None:
        """Act in this context for a while, as in a test; learning needs `enter`."""
        self._context = context

    def _acting_network(self) -> QNetwork:
        """Return the network of the context that it acts in."""
        if self._context == self._trained:
            return self._agent.network
        if self._context not in self._acting:
            self._put_back()
            network = QNetwork(self._part, *self._shape).to(self._agent.learning.device)
            network.add_context()
            own = self._own[0].get(self._context, {})
            _load(network, self._gates.cut(self._pools[0], self._context) | own)
            self._acting[self._context] = network
        return self._acting[self._context]

    @torch.no_grad()
    def act(
        self, states: NDArray[np.uint8], epsilon: float, random: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return one action per state; see `Agent.act`."""
        values = self._acting_network()(self._agent.learning.tensor(states), folded=True)
        return epsilon_greedy(values, epsilon, random)

    @torch.no_grad()
    def action_values(self, states: Tensor) -> Tensor:
        """Return Q(s, ·) of states [n, channels, height, width], on the CPU."""
        values: Tensor = self._acting_network()(states.to(self._agent.learning.device))
        return values.cpu()

    def learn(self, transitions: Transitions) -> float:
        """Take one step of the optimizer, with the pull of the memory; return the loss."""
        self._acting.clear()
        return self._agent.learn(transitions)

    def update_target(self) -> None:
        """Copy the network to the target network."""
        self._agent.update_target()

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Use the average of the parameters since the context was entered while a block runs."""
        self._acting.clear()
        with self._agent.averaged():
            yield
        self._acting.clear()

    def adopt_average(self) -> None:
        """Replace the parameters by their average, and start another average."""
        self._acting.clear()
        self._agent.adopt_average()

    def fisher(self, batches: Iterable[Transitions], random: np.random.Generator) -> Fisher:
        """Return the Fisher of the shared weights that the present context uses."""
        return self._agent.fisher(batches, random)

    def consolidate(self, batches: Iterable[Transitions], random: np.random.Generator) -> Fisher:
        """Remember the shared weights as the solution of the present context.

        Args:
            batches: minibatches of the context's replay memory.
            random: source of randomness for the Fisher.

        Returns:
            The Fisher, before the floor is added and the trace is normalized.
        """
        fisher = self.fisher(batches, random)
        stored = self._agent.remember(fisher, _task(self._trained))
        self._solutions.pop(self._trained, None)  # so that tasks are in the order of their wells
        self._solutions[self._trained] = self._solution(stored)
        return fisher

    def _solution(self, stored: Fisher) -> Solution:
        """Return what is remembered of the present context, with the Fisher as it was stored."""
        shared = _shared(self._agent.network)
        if not isinstance(stored, KroneckerFisher):
            return Solution(stored, shared)
        whole = {name: weight.clone() for name, weight in self._pools[0].items()}
        self._gates.put(shared, self._trained, whole)
        return Solution(stored.factors, whole)

    def state_dict(self) -> dict[str, Any]:
        """Return the pool, the contexts, the solutions and the agent of the present context."""
        return {
            "context": self._trained,
            "pools": _with_text_keys(enumerate(self._pools)),
            "own": _with_text_keys(
                (number, _with_text_keys(own.items())) for number, own in enumerate(self._own)
            ),
            "solutions": _with_text_keys((c, _plain(s)) for c, s in self._solutions.items()),
            "agent": self._agent.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of an agent with the same config."""
        names = ("pools", "own", "solutions")
        contexts = on_device({name: state[name] for name in names}, self._agent.learning.device)
        self._pools = list(contexts["pools"].values())
        self._own = [_with_number_keys(own) for own in contexts["own"].values()]
        self._solutions = {
            context: _restored(solution)
            for context, solution in _with_number_keys(contexts["solutions"]).items()
        }
        self._start(state["context"])
        self._agent.load_state_dict(state["agent"])


AnyAgent = Agent | GatedAgent


def make_agent(
    config: AgentConfig,
    state_shape: tuple[int, int, int],
    num_actions: int,
    seed: int,
    arm: Arm,
) -> AnyAgent:
    """Make the agent of an arm: with gates or without, and with its kind of wells."""
    kind = GatedAgent if arm.gated else Agent
    return kind(config, state_shape, num_actions, seed, wells=arm.wells or "diagonal")


def _task(context: int) -> str:
    """Return the name of a context in the memory, in which the trained one is always number 0."""
    return f"context {context}"


def _shared(network: QNetwork) -> Weights:
    """Return a copy of the weights that contexts share."""
    return _copied(network, SHARED.removesuffix("*"))


def _of_context(network: QNetwork) -> Weights:
    """Return a copy of gains and biases."""
    return _copied(network, "contexts.")


def _copied(network: QNetwork, prefix: str) -> Weights:
    return {
        name: parameter.detach().clone()
        for name, parameter in network.named_parameters()
        if name.startswith(prefix)
    }


@torch.no_grad()
def _load(network: QNetwork, values: Mapping[str, Tensor]) -> None:
    """Copy values into the parameters of these names."""
    parameters = dict(network.named_parameters())
    for name, value in values.items():
        parameters[name].copy_(value)


def _with_text_keys(items: Iterable[tuple[int, Any]]) -> dict[str, Any]:
    return {str(key): value for key, value in items}


def _with_number_keys(items: Mapping[str, Any]) -> dict[int, Any]:
    return {int(key): value for key, value in items.items()}


def _plain(solution: Solution) -> dict[str, Any]:
    """Return a solution as tensors and plain values."""
    precision = {
        name: {"inputs": one.inputs, "outputs": one.outputs, "positions": one.positions}
        if isinstance(one, KroneckerFactors)
        else one
        for name, one in solution.precision.items()
    }
    return {"precision": precision, "anchor": solution.anchor}


def _restored(state: dict[str, Any]) -> Solution:
    """Return the solution that `_plain` made a state of."""
    precision: Any = {
        name: KroneckerFactors(**one) if isinstance(one, dict) else one
        for name, one in state["precision"].items()
    }
    return Solution(precision, state["anchor"])
