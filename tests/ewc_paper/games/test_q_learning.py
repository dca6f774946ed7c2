"""The loss against a loop over transitions."""

import numpy as np
import pytest
import torch
from support.acting import make_agent, make_transitions

from ewc_paper.games.q_learning import QLearning


def make_learning(*, double: bool) -> QLearning:
    """A network and a target that differs from it, as between two synchronizations."""
    learning = make_agent(double=double).learning
    for parameter in learning.target.layers.parameters():
        parameter.mul_(1.3)
    learning.network.double()
    learning.target.double()
    return learning


@pytest.mark.parametrize("double", [True, False])
@torch.no_grad()
def test_the_loss_is_that_of_double_q_learning(double: bool) -> None:
    learning, batch = make_learning(double=double), make_transitions()
    losses = []
    for i in range(len(batch.states)):
        state, following = (
            torch.from_numpy(x[i : i + 1]) for x in (batch.states, batch.next_states)
        )
        chooser = learning.network if double else learning.target
        best = int(chooser(following)[0].argmax())
        y = batch.rewards[i] + batch.discounts[i] * float(learning.target(following)[0, best])
        delta = float(learning.network(state)[0, batch.actions[i]]) - y
        losses.append(0.5 * delta**2 if abs(delta) < 1 else abs(delta) - 0.5)
    loss = learning.td_loss(batch, learning.td_targets(batch))
    assert float(loss) == pytest.approx(np.mean(losses), rel=1e-6)


def test_no_gradient_flows_through_the_targets() -> None:
    learning = make_agent().learning
    assert not learning.td_targets(make_transitions()).requires_grad
