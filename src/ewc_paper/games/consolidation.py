"""What is computed when a task is consolidated: the Fisher of a Q-network, and its dead units.

The paper does not say which Fisher a Q-network has, so there are three to choose from.

    gaussian       F = E_s [Σ_a (∂Q(s, a)/∂θ)²], Q as the mean of a Gaussian of unit variance
    td             F = E [(δ ∂Q(s, a)/∂θ)²], the squared gradient of each transition's loss
    td-minibatch   F = E [(mean over a minibatch of δ ∂Q(s, a)/∂θ)²], smaller by about its size

δ is the TD error, clipped to ±1. Each is estimated from minibatches of the task's replay memory,
for the weights that contexts share.

A unit that is inactive in a state has no gradient there, so the Fisher leaves all of its weights
free to change; but large changes can activate it. With a `leak`, gradients also pass through
inactive units, times that slope, and the Fisher includes the effect that such a unit would have.
"""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from ewc.fisher import fisher_diagonal
from ewc_paper.games.config import FisherKind
from ewc_paper.games.network import SHARED, GainsAndBiases, QNetwork
from ewc_paper.games.q_learning import QLearning
from ewc_paper.games.replay import Transitions


def q_network_fisher(
    learning: QLearning,
    batches: Iterable[Transitions],
    *,
    kind: FisherKind,
    leak: float,
    random: np.random.Generator,
) -> dict[str, Tensor]:
    """Return the Fisher diagonal of the shared weights, in the present context of the network.

    Args:
        learning: the network and its target network.
        batches: minibatches of the task.
        kind: which Fisher; see above.
        leak: slope of the gradient in inactive units.
        random: source of the random signs of the kind "gaussian".
    """
    with learning.network.leaking(leak):
        if kind == "td-minibatch":
            return _squared_minibatch_gradients(learning, batches)
        is_td = kind == "td"
        return fisher_diagonal(
            learning.network,
            _td_samples(learning, batches) if is_td else _signs(learning, batches, random),
            kind="empirical",
            likelihood=_td_log_likelihood if is_td else _signed_sum,
            parameters=SHARED,
        )


@torch.no_grad()
def silence_dead_units(network: QNetwork, batches: Iterable[Transitions]) -> int:
    """Zero the gains of all units that are dead on the present context; return their number.

    A unit is dead if its output is zero in all states of the batches. The Fisher of its weights is
    zero, so they may change while another task is trained. If the unit is active then, it would
    disturb this task. With a gain of zero it cannot, and other tasks are free to use it.
    """
    alive: list[Tensor] = []
    for batch in batches:
        states = torch.from_numpy(batch.states).to(next(network.parameters()).device)
        active = [_active_units(output) for output in network.layer_outputs(states)]
        alive = [a | b for a, b in zip(alive, active, strict=True)] if alive else active
    own = network.contexts[network.context]
    assert isinstance(own, GainsAndBiases)
    hidden = list(zip(own.gains, alive, strict=True))[:-1]  # the last outputs are action values
    for gain, lives in hidden:
        gain.mul_(lives)
    return sum(int((~lives).sum()) for _, lives in hidden)


def _active_units(output: Tensor) -> Tensor:
    """Return which units of a layer output [n, units, ...] are not always zero."""
    return output.movedim(1, -1).flatten(0, -2).ne(0).any(0)


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


def _td_samples(
    learning: QLearning, batches: Iterable[Transitions]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield states, and the pair (action, y) of each."""
    for batch in batches:
        actions = learning.tensor(batch.actions)
        target = torch.stack([actions.float(), learning.td_targets(batch)], dim=1)
        yield learning.tensor(batch.states), target


def _td_log_likelihood(values: Tensor, target: Tensor | None) -> Tensor:
    """Return −h(Q(s, a) − y), whose gradient is the clipped TD error."""
    assert target is not None
    q = values.gather(1, target[:, :1].long()).squeeze(1)
    return -torch.nn.functional.smooth_l1_loss(q, target[:, 1], reduction="none")


def used_weights(network: QNetwork) -> dict[str, Tensor]:
    """Return which shared weights the present context uses, as a mask by name.

    A context does not use the weights of units whose gain is zero, neither those that lead to such
    a unit nor those that come from it. Whatever happens to them, the context plays the same.
    """
    own = network.contexts[network.context]
    assert isinstance(own, GainsAndBiases)
    masks: dict[str, Tensor] = {}
    incoming: Tensor | None = None  # whether each unit of the layer before is used
    for number, (layer, gain) in enumerate(zip(network.layers, own.gains, strict=True)):
        weight, outgoing = layer.weight, gain.detach() != 0
        assert isinstance(weight, Tensor)
        mask = torch.ones_like(weight, dtype=torch.bool)
        mask[~outgoing] = False
        if incoming is not None:
            # A linear layer after a convolution sees all filters of a place before the next place.
            mask[:, ~incoming.repeat(weight.shape[1] // len(incoming))] = False
        masks[f"layers.{number}.weight"] = mask
        incoming = outgoing
    return masks


def raised(
    fisher: Mapping[str, Tensor], used: Mapping[str, Tensor], floor: float
) -> dict[str, Tensor]:
    """Return the Fisher with `floor` times each layer's mean added to the weights in use."""
    return {
        name: tensor + floor * tensor[used[name]].mean() * used[name]
        for name, tensor in fisher.items()
    }


def _squared_minibatch_gradients(
    learning: QLearning, batches: Iterable[Transitions]
) -> dict[str, Tensor]:
    shared = {
        name: parameter
        for name, parameter in learning.network.named_parameters()
        if name.startswith(SHARED.rstrip("*"))
    }
    total = {name: torch.zeros_like(parameter) for name, parameter in shared.items()}
    count = 0
    for batch in batches:
        loss = learning.td_loss(batch, learning.td_targets(batch))
        gradients = torch.autograd.grad(loss, list(shared.values()))
        for name, gradient in zip(shared, gradients, strict=True):
            total[name] += gradient.square()
        count += 1
    return {name: tensor / count for name, tensor in total.items()}
