"""What happened in training since it was last reported."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """Counts between two rows of measurements; plain values only, as it is part of checkpoints."""

    scores: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    recognized: dict[str, int] = field(default_factory=dict)  # steps by context
    epsilon: float = 1.0

    def count(self, context: int, steps: int, scores: list[float], epsilon: float) -> None:
        self.scores.extend(scores)
        self.recognized[str(context)] = self.recognized.get(str(context), 0) + steps
        self.epsilon = epsilon

    def take(self) -> dict[str, Any]:
        """The measurements of a row, after which counting starts anew."""
        row = {
            "score": _mean(self.scores),
            "episodes": len(self.scores),
            "loss": _mean(self.losses),
            "epsilon": self.epsilon,
            "recognized": self.recognized,
        }
        self.scores, self.losses, self.recognized = [], [], {}
        return row


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
