"""What happened in training since it was last reported."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class TrainingStatistics:
    """Counts between two rows of measurements.

    Attributes:
        scores: scores of the episodes that ended.
        losses: one per update of the network.
        recognized: agent steps by context.
        epsilon: the last exploration rate.
        in_segment: agent steps by context since the segment began.
    """

    scores: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    recognized: dict[str, int] = field(default_factory=dict)
    epsilon: float = 1.0
    in_segment: dict[str, int] = field(default_factory=dict)

    def count(self, context: int, agent_steps: int, scores: list[float], epsilon: float) -> None:
        """Add the steps of one row.

        Args:
            context: the context that the steps were played in.
            agent_steps: their number.
            scores: scores of the episodes that ended with them.
            epsilon: the exploration rate.
        """
        self.scores.extend(scores)
        for counts in (self.recognized, self.in_segment):
            counts[str(context)] = counts.get(str(context), 0) + agent_steps
        self.epsilon = epsilon

    def take(self) -> dict[str, Any]:
        """Return the measurements for a row, and start counting from zero."""
        row = {
            "score": _mean(self.scores),
            "episodes": len(self.scores),
            "loss": _mean(self.losses),
            "epsilon": self.epsilon,
            "recognized": self.recognized,
        }
        self.scores, self.losses, self.recognized = [], [], {}
        return row

    def end_segment(self) -> list[int]:
        """Return the contexts of the segment, the one played most first, and start another."""
        contexts = sorted(self.in_segment, key=self.in_segment.__getitem__, reverse=True)
        self.in_segment = {}
        return [int(context) for context in contexts]

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(TrainingStatistics(**state).__dict__)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
