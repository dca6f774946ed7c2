"""The precision of a weight matrix that moves by an adapter alone, W = W₀ + s B A_l.

    E(B, A_l) = tr(Δᵀ G Δ A) / T + ridge ‖Δ‖²,    Δ = s (B A_l − B* A_l*) = U V

With d = B − B* and a = A_l − A_l* it is U = (d, B*) and V = s (A_l; a), of twice the rank of the
adapter. So E = Σ (Uᵀ G U) ∘ (V A Vᵀ) / T + ridge Σ (Uᵀ U) ∘ (V Vᵀ), and no matrix of the size of W
is ever formed: a step takes each factor times 2 r columns or rows. W₀ is not needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ewc.curvature.kronecker import Factor, Layer
from ewc.parameters import at_least_float32


@dataclass(frozen=True)
class AdapterLayer(Layer):
    """The precision of W in the two matrices of an adapter: B, whose name it has, and A_l, `bias`.

    Attributes:
        scaling: s.
        at_zero: E at W = 0, the sum over tasks: the scale of a relative budget.
    """

    SUMS: ClassVar[tuple[str, ...]] = ("tasks", "ridge", "at_zero")

    scaling: float = 1.0
    at_zero: float = 0.0

    @classmethod
    def of_layer(cls, layer: Layer, a: str, scaling: float, at_zero: float) -> "AdapterLayer":
        """Return the precision of a weight, without that of its bias, for its adapter.

        Args:
            layer: that of the weight, of a single task.
            a: the name of A_l.
            scaling: s.
            at_zero: E at W = 0.
        """
        inputs = layer.inputs
        if layer.bias is not None:
            inputs = Factor(inputs.full()[:-1, :-1].contiguous())
        return cls(
            inputs,
            layer.outputs,
            tasks=layer.tasks,
            ridge=layer.ridge,
            bias=a,
            positions=layer.positions,
            scaling=scaling,
            at_zero=at_zero,
        )

    def largest(self) -> float:
        """Return 0: how steep it is depends on where the other matrix is."""
        return 0.0

    def diagonals(self, name: str) -> dict[str, Tensor]:
        """Return the diagonal precision of each row of B and column of A_l, if they are of size 1.

        Args:
            name: that of B.
        """
        assert self.bias is not None
        outputs, inputs = self.outputs.diagonal() / self.tasks, self.inputs.diagonal()
        return {
            name: (outputs * inputs.sum()).unsqueeze(1),
            self.bias: (inputs * outputs.sum()).unsqueeze(0),
        }

    def shaped(self, part: Tensor, like: Tensor) -> Tensor:
        """Return a part in the shape of its parameter."""
        return part.expand(like.shape) if part.ndim == 2 else part.reshape(like.shape)

    def joined(
        self, name: str, tensors: Mapping[str, Tensor], anchor: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the distances d and a, and the anchors B* and A_l*, in one row.

        Args:
            name: that of B.
            tensors: the distances, by name.
            anchor: the anchors, by name.
        """
        assert self.bias is not None
        both = (name, self.bias)
        parts = [tensors[each] for each in both] + [anchor[each] for each in both]
        return torch.cat([part.to(self.dtype).reshape(-1) for part in parts])

    def split(self, name: str, matrix: Tensor) -> dict[str, Tensor]:
        """Return the parts of a row that belong to B and to A_l, by name."""
        assert self.bias is not None
        b, a, _, _ = self._parts(matrix)
        return {name: b.reshape(-1), self.bias: a.reshape(-1)}

    def energy(self, distance: Tensor) -> Tensor:
        """Return E of a joined row."""
        b, a, b_anchor, a_anchor = self._parts(distance)
        u = torch.cat([b, b_anchor], 1)
        v = self.scaling * torch.cat([a_anchor + a, a])
        curved = (u.t() @ _times(self.outputs, u)) * (v @ _times(self.inputs, v.t()))
        flat = (u.t() @ u) * (v @ v.t())
        return curved.sum() / self.tasks + self.ridge * flat.sum()

    def gradient(self, distance: Tensor) -> Tensor:
        """Return half of the gradient of E by a joined row."""
        with torch.enable_grad():
            row = distance.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.energy(row) / 2, row)
        return gradient

    def fitted(self, name: str, parameters: Mapping[str, Tensor]) -> "AdapterLayer":
        """Return the layer on the device and in the dtype of B."""
        b = parameters[name]
        if self.dtype == at_least_float32(b.dtype) and self.inputs.matrix.device == b.device:
            return self
        like = torch.empty(0, dtype=at_least_float32(b.dtype), device=b.device)
        return replace(self, inputs=self.inputs.to(like), outputs=self.outputs.to(like))

    def _parts(self, row: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        outputs, inputs = len(self.outputs.matrix), len(self.inputs.matrix)
        rank = len(row) // (2 * (outputs + inputs))
        b, a, b_anchor, a_anchor = row.split([outputs * rank, inputs * rank] * 2)
        return (
            b.view(outputs, rank),
            a.view(rank, inputs),
            b_anchor.view(outputs, rank),
            a_anchor.view(rank, inputs),
        )


def _times(factor: Factor, columns: Tensor) -> Tensor:
    """Return a factor times some columns."""
    if factor.values is None:
        return factor.matrix @ columns
    along = (factor.values - factor.rest).unsqueeze(1) * (factor.matrix.t() @ columns)
    return factor.matrix @ along + factor.rest * columns
