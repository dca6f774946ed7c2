"""What is done to a Fisher before it becomes a well: a floor under it, and a fixed trace."""

from collections.abc import Mapping

from torch import Tensor


def shaped(
    fisher: Mapping[str, Tensor], *, floor: float = 0.0, normalize: float | None = None
) -> dict[str, Tensor]:
    """F + floor · mean(F), the mean over each parameter; then all scaled to the trace `normalize`.

    The floor holds weights that no sample used: of a dead unit, say, which the next task revives.
    """
    raised = {name: tensor + floor * tensor.mean() for name, tensor in fisher.items()}
    total = trace(raised)
    if normalize is None or total == 0:
        return raised
    return {name: tensor * (normalize / total) for name, tensor in raised.items()}


def trace(fisher: Mapping[str, Tensor]) -> float:
    return sum(float(tensor.sum()) for tensor in fisher.values())
