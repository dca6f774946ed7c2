"""How far the network has drifted on the games that it has left.

Drift is measured on states that were stored when a game was last left, together with the action
values that the network gave them. *Agreement* is the fraction of states in which the greedy action
is still the same. *Regret* is the stored value lost by today's greedy action, on average.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ewc_paper.games.gated_agent import AnyAgent
from ewc_paper.games.replay import Replay

LANDMARK_STATES = 256  # states stored per game


class Drift(NamedTuple):
    """The change of a network on one game."""

    agreement: float
    regret: float


class Landmark(NamedTuple):
    """States of a game, and their action values when the game was last left."""

    states: Tensor  # [n, channels, height, width]
    values: Tensor  # [n, actions]
    context: int  # that the states were played in

    def drift(self, agent: AnyAgent) -> Drift:
        """Compare the present network with the stored action values."""
        chosen = _values_in(agent, self.states, self.context).argmax(1, keepdim=True)
        best, greedy = self.values.max(1, keepdim=True)
        agreement = (chosen == greedy).float().mean()
        regret = (best - self.values.gather(1, chosen)).mean()
        return Drift(float(agreement), float(regret))


class Landmarks:
    """The landmark of each game that was left."""

    def __init__(self) -> None:
        self._landmarks: dict[str, Landmark] = {}

    def store(self, game: str, agent: AnyAgent, replay: Replay, context: int) -> None:
        """Store states of a game that is being left, in place of older ones.

        Args:
            game: the game.
            agent: what evaluates the states.
            replay: where the states come from.
            context: the context that the replay memory belongs to. The states are evaluated in it,
                now and later, whatever context the agent is in.
        """
        states = torch.from_numpy(replay.spread_states(LANDMARK_STATES))
        self._landmarks[game] = Landmark(states, _values_in(agent, states, context), context)

    def drift(self, agent: AnyAgent) -> dict[str, Drift]:
        """Return the drift of the agent's network on each game that was left."""
        return {game: landmark.drift(agent) for game, landmark in self._landmarks.items()}

    def state_dict(self) -> dict[str, Any]:
        return {game: landmark._asdict() for game, landmark in self._landmarks.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._landmarks = {game: Landmark(**landmark) for game, landmark in state.items()}


def _values_in(agent: AnyAgent, states: Tensor, context: int) -> Tensor:
    """Return the action values of states in a context; the agent stays in its own."""
    present = agent.context
    agent.act_in(context)
    values = agent.action_values(states)
    agent.act_in(present)
    return values
