"""Whether the output for a sample depends on the other samples of its batch."""

from torch import Tensor

MASK = 1e4  # larger entries may be masks, which say nothing about the size of the others
COMPARED = 16  # rows of the output that show how large the entries of each column are


class Rounding:
    """How much the output for a sample may differ, by rounding, in a batch of another size.

    Each entry is judged by its own size and the size of its column (the last dimension) in other
    rows. Next to a logit that is masked with -1e9, or a regression target in other units, any
    difference would seem small.

    Args:
        output: the output for a batch.
        rounding: the relative rounding error of one operation.
    """

    def __init__(self, output: Tensor, rounding: float) -> None:
        columns = output.shape[-1] if output.ndim > 1 else 1
        rows = output.detach().reshape(-1, columns)
        sizes = rows[:: max(1, len(rows) // COMPARED)].abs()
        small = sizes[sizes < MASK]
        usual = float(small.median()) if small.numel() else 0.0
        self.relative = rounding**0.5
        self.absolute = self.relative * sizes.amax(0) + 16 * rounding * usual

    def explains(self, first: Tensor, second: Tensor) -> bool:
        """Whether two outputs for a sample are equal up to rounding."""
        if first.shape != second.shape:
            return False
        first, second = first.detach(), second.detach()
        allowed = self.relative * first.abs() + self.absolute
        return bool(((first - second).abs() <= allowed).all())
