"""The model of a Fisher pass: its outputs, their graphs, and the gradients of single samples."""

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from ewc.dtypes import at_least_float32, widened
from ewc.fisher.autograd.batch_norm import correct_batch_norms
from ewc.fisher.autograd.graph import Graph
from ewc.fisher.batches import FisherBatch


class ModelRun:
    """Runs a model and differentiates its outputs with respect to some parameters.

    With `one_output`, a model that returns several is refused.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Mapping[str, nn.Parameter],
        *,
        one_output: bool = False,
    ) -> None:
        self.model = model
        self.parameters = parameters
        self._one_output = one_output
        self._names = {id(parameter): name for name, parameter in parameters.items()}

    def zeros(self, name: str) -> Tensor:
        """Return zeros like a parameter, in the type that its squares are summed in."""
        p = self.parameters[name]
        return torch.zeros(p.shape, dtype=at_least_float32(p.dtype), device=p.device)

    def outputs(self, batch: FisherBatch) -> Tensor:
        """Return the model's outputs for a batch; raise if they cannot be used."""
        output = batch.outputs(self.model, one_output=self._one_output)
        values = output.detach()
        # The sum is the quick test, but it may overflow for finite outputs.
        if not bool(widened(values).sum().isfinite()) and not bool(values.isfinite().all()):
            raise ValueError(
                f"the model's outputs for {batch.where} are NaN or infinite: "
                "check its inputs and the weights"
            )
        if output.grad_fn is None:
            raise ValueError(
                "the model's output does not depend on any trainable parameter: "
                "is its forward under no_grad or detached?"
            )
        return output

    def graph(self, output: Tensor) -> Graph:
        """Return the graph of an output, in which the backward of every node is right."""
        graph = Graph(output, self._names)
        correct_batch_norms(graph)
        return graph

    def sample_gradients(
        self, output: Tensor, names: list[str], cotangents: Iterable[Tensor]
    ) -> Iterator[dict[str, Tensor]]:
        """Yield the gradients of one sample, for each cotangent, by plain autograd.

        Args:
            output: the model's output for this sample.
            names: the parameters to differentiate by.
            cotangents: vectors at the output.
        """
        self.graph(output)
        inputs = [self.parameters[name] for name in names]
        for cotangent in cotangents:
            grads = torch.autograd.grad(
                output, inputs, cotangent.to(output.dtype), retain_graph=True, allow_unused=True
            )
            yield {
                name: self.zeros(name)
                if grad is None
                else widened(grad.to_dense() if grad.is_sparse else grad)
                for name, grad in zip(names, grads, strict=True)
            }
