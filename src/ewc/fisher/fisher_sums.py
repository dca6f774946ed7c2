"""The sums that a Fisher is the mean of, over the batches of one process, or of several."""

from dataclasses import dataclass

from torch import Tensor

from ewc.fisher.likelihood import Positions
from ewc.processes import Processes
from ewc.sharding import is_sharded, shard, total
from ewc.warnings import warn


@dataclass
class FisherSums:
    """Sums of squared per-sample gradients, and what they are divided by.

    Attributes:
        totals: the sums, one tensor per parameter. Plain ones are of this process's samples,
            sharded ones are shards of the sums over the samples of all processes.
        samples: number of samples of this process.
        positions: number of positions that count in these samples.
    """

    totals: dict[str, Tensor]
    samples: int = 0
    positions: int = 0

    def count(self, samples: int, positions: int) -> None:
        """Count some more samples, and the positions in them."""
        self.samples += samples
        self.positions += positions

    def mean(
        self, processes: Processes, max_samples: int | None, positions: Positions
    ) -> dict[str, Tensor]:
        """Return the sums divided by the number of positions or samples of all processes.

        Raises if they are not finite.
        """
        samples, counted = processes.sum(self.samples, self.positions)
        if samples == 0:
            raise ValueError("batches is empty: the Fisher needs at least one sample")
        if max_samples is not None and samples < max_samples:
            warn(f"batches ended after {samples} samples, before max_samples={max_samples}")
        if counted == 0:
            raise ValueError("no position counts: every label is -100, or every token is masked")
        for name, sums in self.totals.items():
            if not is_sharded(sums):
                processes.sum_(sums)
            shard(sums).div_(counted if positions == "mean" else samples)
            if not bool(total(sums).isfinite()):
                raise ValueError(
                    f"the Fisher of {name!r} is not finite: its gradients overflow or are NaN"
                )
        return self.totals
