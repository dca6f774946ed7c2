"""The loss of Double Q-learning.

    y = r + γⁿ Q_target(s', argmax_a Q(s', a)),   loss = mean of h(Q(s, a) − y)

with h the Huber loss, whose gradient is the TD error clipped to ±1.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ewc_paper.games.network import QNetwork
from ewc_paper.games.replay import Transitions


@dataclass(frozen=True)
class QLearning:
    """A network, and what it is trained to predict.

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
