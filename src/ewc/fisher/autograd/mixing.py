"""Whether the output for a sample depends on the other samples of its batch."""

from torch import Tensor

MASK = 1e4  # entries at least this large may be masks, which say nothing of the size of others
COMPARED = 16  # rows of the output that show how large the entries of each column are


class Rounding:
    """How much the output of a sample may change by rounding in a batch of another size."""

    def __init__(self, output: Tensor, rounding: float) -> None:
        """`rounding` is that of one operation.

        Each entry is judged by its own size and that of its column (the last dimension) in other
        rows: beside a logit that is masked with -1e9, or a regression in other units, any
        difference would seem small.
        """
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
