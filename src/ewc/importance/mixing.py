"""Whether the output for a sample depends on the other samples of its batch."""

from torch import Tensor

MASK = 1e4  # entries at least this large may be masks, which say nothing of the size of others
COMPARED = 16  # samples that show how large each entry of the output is


class Rounding:
    """How much the output of a sample may change by rounding in a batch of another size."""

    def __init__(self, output: Tensor, rounding: float) -> None:
        """`rounding` is that of one operation.

        Each entry of the output is judged by its own size over the batch: beside a logit that is
        masked with -1e9, or a regression in other units, any difference would seem small.
        """
        sizes = output.detach()[:: max(1, len(output) // COMPARED)].abs()
        small = sizes[sizes < MASK]
        usual = float(small.median()) if small.numel() else 0.0
        self.allowed = rounding**0.5 * sizes.amax(0) + 16 * rounding * usual

    def explains(self, first: Tensor, second: Tensor) -> bool:
        """Whether two outputs for a sample are equal up to rounding."""
        if first.shape != second.shape:
            return False
        return bool(((first - second).detach().abs() <= self.allowed).all())
