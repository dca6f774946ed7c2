"""One pass over batches, which sums the absolute per-sample gradients of the squared output norm.

    Σ_n | ∂‖f(x_n)‖² / ∂θ_i |

It runs and checks batches like the Fisher's pass, of which it differs in two ways: the cotangent is
∂‖f‖²/∂f = 2 f, and gradients are summed in absolute value, |g aᵀ| = |g| |a|ᵀ, instead of squared.
"""

from collections.abc import Iterable, Mapping

from torch import Tensor, nn

from ewc.dtypes import widened
from ewc.fisher.batch_absolutes import BatchAbsolutes
from ewc.fisher.batches import FisherBatch
from ewc.fisher.fisher_pass import FisherPass
from ewc.fisher.likelihood import counted_positions


class AbsolutePass(FisherPass):
    """Sums of absolute per-sample gradients of ‖f(x)‖², batch by batch.

    Args:
        model: the model, in eval mode.
        parameters: the parameters to differentiate by, by name.
    """

    _batch_sums = BatchAbsolutes

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        # No label is used, except that positions labeled -100 do not count.
        super().__init__(model, parameters, "empirical", "categorical", None)

    def _cotangents(self, batch: FisherBatch, output: Tensor) -> Iterable[Tensor]:
        cotangent = 2 * widened(output.detach())
        counted = counted_positions(output, batch.targets, batch.mask, "categorical")
        return [cotangent if counted is None else cotangent * counted.unsqueeze(-1)]

    def _add_sample(self, totals: dict[str, Tensor], output: Tensor, vectors: list[Tensor]) -> None:
        for grads in self._run.sample_gradients(output, list(totals), vectors):
            for name, grad in grads.items():
                totals[name].add_(grad.abs())
