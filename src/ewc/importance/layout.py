"""Where the samples of a batch are in the tensors of an operation."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where the samples are in a tensor: along `dim`, outermost of what is folded into it, or
    innermost.
    """

    dim: int
    outer: bool

    def by_sample(self, tensor: Tensor, batch: int) -> Tensor:
        """`tensor` with the samples moved to a new first dimension; what else was in `dim` stays
        there.
        """
        rest = tensor.shape[self.dim] // batch
        if self.outer:
            split: Tensor = tensor.unflatten(self.dim, (batch, rest))
            return split.movedim(self.dim, 0) if self.dim else split
        folded: Tensor = tensor.unflatten(self.dim, (rest, batch))
        return folded.movedim(self.dim + 1, 0)
