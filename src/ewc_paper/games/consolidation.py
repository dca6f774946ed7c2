"""What is computed when a task is consolidated: the Fisher of a Q-network.

    F = E_s [Σ_a (∂Q(s, a)/∂θ)²]

The paper does not say which Fisher a Q-network has. This is that of Q as the mean of a Gaussian of
unit variance, estimated from minibatches of the task's replay memory, for the weights that contexts
share.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from ewc.fisher import fisher_diagonal
from ewc_paper.games.network import SHARED
from ewc_paper.games.q_learning import QLearning
from ewc_paper.games.replay import Transitions


def q_network_fisher(
    learning: QLearning, batches: Iterable[Transitions], random: np.random.Generator
) -> dict[str, Tensor]:
    """Return the Fisher diagonal of the shared weights, in the present context of the network.

    Args:
        learning: the network that is consolidated.
        batches: minibatches of the task.
        random: source of the random signs that all actions are covered with.
    """
    return fisher_diagonal(
        learning.network,
        _signs(learning, batches, random),
        kind="empirical",
        likelihood=_signed_sum,
        parameters=SHARED,
    )


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
