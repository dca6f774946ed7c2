"""Which Fisher a Q-network has: the paper does not say, so there are three to choose from.

    gaussian       F = E_s [Σ_a (∂Q(s, a)/∂θ)²], Q as the mean of a Gaussian of unit variance
    td             F = E [(δ ∂Q(s, a)/∂θ)²], the squared gradient of each transition's loss
    td-minibatch   F = E [(mean over a minibatch of δ ∂Q(s, a)/∂θ)²], smaller by about its size

δ is the TD error, clipped to ±1. All are taken over minibatches of the task's replay memory, with
respect to the weights that contexts share.

A unit that is off in a state has no gradient there, and to the Fisher all of its weights may move;
but moved far enough they turn it on. With a `leak` gradients pass such a unit too, times that
slope, and the Fisher sees what the unit would say.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from ewc.fisher import fisher_diagonal
from ewc_paper.games.agent import Agent
from ewc_paper.games.network import SHARED, Context
from ewc_paper.games.replay import Batch


def importance(
    agent: Agent, batches: Iterable[Batch], random: np.random.Generator
) -> dict[str, Tensor]:
    """The Fisher diagonal of the agent's settings, in the context it is in."""
    with agent.network.leaking(agent.settings.leak):
        return _importance(agent, batches, random)


def _importance(
    agent: Agent, batches: Iterable[Batch], random: np.random.Generator
) -> dict[str, Tensor]:
    kind = agent.settings.fisher
    if kind == "td-minibatch":
        return _squared_minibatch_gradients(agent, batches)
    if kind == "td":
        return fisher_diagonal(
            agent.network,
            _transitions(agent, batches),
            kind="empirical",
            likelihood=_td_log_likelihood,
            parameters=SHARED,
        )
    return fisher_diagonal(
        agent.network,
        _signs(agent, batches, random),
        kind="empirical",
        likelihood=_signed_sum,
        parameters=SHARED,
    )


@torch.no_grad()
def silence_dead_units(agent: Agent, batches: Iterable[Batch]) -> int:
    """Set to zero the context's gains of all units that are dead on its states; return how many.

    The weights of a unit that is dead on a task have no Fisher and are free to change. Another task
    may bring the unit to life, and then it would speak in the first task too. With a gain of zero
    it cannot, so the task stays as it is and the unit is there for others to use.
    """
    network = agent.network
    alive = [torch.zeros(width, dtype=torch.bool, device=agent.device) for width in network.widths]
    for batch in batches:
        outputs = network.layer_outputs(torch.from_numpy(batch.states).to(agent.device))
        for one, output in zip(alive, outputs, strict=True):
            one |= output.movedim(1, -1).flatten(0, -2).ne(0).any(0)
    own = network.contexts[network.context]
    assert isinstance(own, Context)
    hidden = list(zip(own.gains, alive, strict=True))[:-1]  # the last are actions, not units
    for gain, lives in hidden:
        gain.mul_(lives)
    return sum(int((~lives).sum()) for _, lives in hidden)


def _signs(
    agent: Agent, batches: Iterable[Batch], random: np.random.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """States, and a random sign for each action: E_s [(Σ_a s_a ∂Q_a)²] = Σ_a (∂Q_a)².

    So one backward pass stands for all actions.
    """
    for batch in batches:
        signs = random.integers(0, 2, (len(batch.states), agent.num_actions)) * 2 - 1
        yield torch.from_numpy(batch.states).to(agent.device), torch.from_numpy(signs)


def _signed_sum(values: Tensor, signs: Tensor | None) -> Tensor:
    assert signs is not None
    return (values * signs.to(values)).sum(1)


def _transitions(agent: Agent, batches: Iterable[Batch]) -> Iterator[tuple[Tensor, Tensor]]:
    """States, and (action, y) of each."""
    for batch in batches:
        actions = torch.from_numpy(batch.actions).to(agent.device)
        target = torch.stack([actions.float(), agent.td_targets(batch)], dim=1)
        yield torch.from_numpy(batch.states).to(agent.device), target


def _td_log_likelihood(values: Tensor, target: Tensor | None) -> Tensor:
    """−h(Q(s, a) − y), whose gradient is the clipped TD error."""
    assert target is not None
    q = values.gather(1, target[:, :1].long()).squeeze(1)
    return -torch.nn.functional.smooth_l1_loss(q, target[:, 1], reduction="none")


def _squared_minibatch_gradients(agent: Agent, batches: Iterable[Batch]) -> dict[str, Tensor]:
    shared = {
        name: parameter
        for name, parameter in agent.network.named_parameters()
        if name.startswith(SHARED.rstrip("*"))
    }
    total = {name: torch.zeros_like(parameter) for name, parameter in shared.items()}
    count = 0
    for batch in batches:
        loss = agent.td_loss(batch, agent.td_targets(batch))
        gradients = torch.autograd.grad(loss, list(shared.values()))
        for name, gradient in zip(shared, gradients, strict=True):
            total[name] += gradient.square()
        count += 1
    return {name: tensor / count for name, tensor in total.items()}
