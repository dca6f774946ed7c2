"""The precision of a weight matrix as a product of two small matrices, and how tasks add up.

    E(Δ) = tr(Δᵀ G Δ A) / T + ridge ‖Δ‖²,    Δ = (W, b) − (W*, b*),    A = Σ_t A_t,    G = Σ_t G_t

with T tasks around one center: (Σ G_t) ⊗ (Σ A_t) / T stands for Σ G_t ⊗ A_t, which is no product of
two matrices, at a cost that does not grow with the number of tasks. (With weights that fade, T is
the sum of the weights.) In the eigenbases of A and G the energy is diagonal:

    E(Δ) = Σ_ij H_ij Y_ij²,    Y = Q_Gᵀ Δ Q_A,    H = s_G s_Aᵀ / T + ridge

A factor with more than `LEADING` rows keeps its leading eigenvectors and gives all other directions
the mean of their eigenvalues, so that the factors of a wide layer are no larger than the layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ewc.fisher.kronecker import KroneckerFactors, KroneckerFisher
from ewc.fisher.overlap import shaped, trace
from ewc.parameters import at_least_float32

LEADING = 256  # eigenvectors that a factor keeps


@dataclass(frozen=True)
class Factor:
    """A symmetric matrix with eigenvalues >= 0: as it is, or Q s Qᵀ + r (1 − Q Qᵀ).

    Attributes:
        matrix: the matrix itself, or eigenvectors Q in columns.
        values: the eigenvalues s of Q; None with the matrix itself.
        rest: r, the eigenvalue of all directions that Q does not have.
    """

    matrix: Tensor
    values: Tensor | None = None
    rest: float = 0.0

    @property
    def is_cut(self) -> bool:
        """Whether there are directions that Q does not have."""
        return self.matrix.shape[1] < len(self.matrix)

    def full(self) -> Tensor:
        """Return the matrix."""
        if self.values is None:
            return self.matrix
        matrix = self.matrix * (self.values - self.rest) @ self.matrix.t()
        matrix.diagonal().add_(self.rest)
        return matrix

    def decomposed(self, leading: int | None = None) -> "Factor":
        """Return the eigenvectors and eigenvalues.

        Args:
            leading: how many to keep, those of the largest eigenvalues; `LEADING` if None.
        """
        if self.values is not None:
            return self
        values, vectors = _eigenvectors(self.matrix)
        values = values.clamp_min(0.0)
        cut = max(len(values) - (LEADING if leading is None else leading), 0)
        rest = float(values[:cut].mean()) if cut else 0.0
        return Factor(vectors[:, cut:].contiguous(), values[cut:].clone(), rest)

    def diagonal(self) -> Tensor:
        """Return the diagonal of the matrix."""
        if self.values is None:
            return self.matrix.diagonal()
        return self.matrix.square() @ (self.values - self.rest) + self.rest

    def on(self, device: torch.device) -> "Factor":
        """Return the matrix on a device."""
        values = None if self.values is None else self.values.to(device)
        return Factor(self.matrix.to(device), values, self.rest)

    def scaled(self, factor: float) -> "Factor":
        """Return the matrix times a number."""
        if self.values is None:
            return Factor(self.matrix * factor)
        return Factor(self.matrix, self.values * factor, self.rest * factor)

    def grown(self, size: int, keep_last: bool) -> "Factor":
        """Return the matrix with rows and columns of zeros added at the end.

        Args:
            size: the number of rows.
            keep_last: whether the last row and column stay the last ones.
        """
        old = len(self.matrix)
        if size == old:
            return self
        at = torch.arange(old, device=self.matrix.device)
        if keep_last:
            at[-1] = size - 1
        larger = self.matrix.new_zeros(size, size)
        larger[at.unsqueeze(1), at] = self.full()
        # All eigenvectors: the new directions have the eigenvalue 0, and not the mean of the rest.
        return Factor(larger) if self.values is None else Factor(larger).decomposed(size)

    def to(self, like: Tensor) -> "Factor":
        """Return the matrix on the device of a tensor, in its dtype."""
        values = None if self.values is None else self.values.to(like)
        return Factor(self.matrix.to(like), values, self.rest)


def _eigenvectors(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues of a symmetric matrix in ascending order, and its eigenvectors.

    LAPACK may give up in float32 where many eigenvalues are zero, as with units that are dead.
    """
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except RuntimeError:  # torch.linalg.LinAlgError
        values, vectors = torch.linalg.eigh(matrix.double())
    return values.to(matrix.dtype), vectors.to(matrix.dtype)


@dataclass(frozen=True)
class Layer:
    """The precision of a weight matrix and its bias.

    Attributes:
        inputs: A, the sum over tasks; its last row is that of the bias, if there is one.
        outputs: G, the sum over tasks.
        tasks: T, what the product of the sums is divided by.
        ridge: what is added to the diagonal of the product.
        bias: the name of the bias, if there is one.
        inputs_first: whether the weight is stored as (inputs, outputs).
        positions: how many positions a sample has on average.
    """

    SUMS: ClassVar[tuple[str, ...]] = ("tasks", "ridge")  # what is a sum over tasks, as A and G

    inputs: Factor
    outputs: Factor
    tasks: float = 1.0
    ridge: float = 0.0
    bias: str | None = None
    inputs_first: bool = False
    positions: float = 1.0

    @classmethod
    def of(cls, factors: KroneckerFactors, floor: float = 0.0, scale: float = 1.0) -> "Layer":
        """Return the precision of one task.

        Args:
            factors: the Fisher of the layer.
            floor: fraction of the mean of the diagonal that is added to all of it.
            scale: what the Fisher and the floor are multiplied by.
        """
        size = len(factors.inputs) * len(factors.outputs)
        return cls(
            Factor(factors.inputs.detach().clone()),
            Factor(factors.outputs.detach() * scale),
            ridge=floor * scale * factors.trace() / size,
            bias=factors.bias,
            inputs_first=factors.inputs_first,
            positions=factors.positions,
        )

    def map(self, change: Callable[[Factor], Factor]) -> "Layer":
        """Return the layer with both factors replaced."""
        return replace(self, inputs=change(self.inputs), outputs=change(self.outputs))

    def decomposed(self) -> "Layer":
        """Return the layer with the eigenvectors of its factors."""
        return self.map(Factor.decomposed)

    @property
    def dtype(self) -> torch.dtype:
        return self.inputs.matrix.dtype

    def largest(self) -> float:
        """Return the largest precision of any direction."""
        assert self.inputs.values is not None
        assert self.outputs.values is not None
        product = float(self.outputs.values.max()) * float(self.inputs.values.max())
        return product / self.tasks + self.ridge

    def diagonals(self, name: str) -> dict[str, Tensor]:
        """Return the diagonal precision of the weight and of its bias, by name.

        Args:
            name: that of the weight.
        """
        both = (self.outputs.diagonal() / self.tasks).unsqueeze(1) * self.inputs.diagonal()
        return self.split(name, both + self.ridge)

    def joined(
        self, name: str, tensors: Mapping[str, Tensor], anchor: Mapping[str, Tensor]
    ) -> Tensor:
        """Return the weight and its bias as one matrix (outputs, inputs), in the layer's dtype.

        Args:
            name: that of the weight.
            tensors: the weight and the bias by name, or what has their shapes.
            anchor: their anchors, which matter where the energy is no function of distances alone.
        """
        weight = tensors[name]
        matrix = (weight.t() if self.inputs_first else weight.flatten(1)).to(self.dtype)
        if self.bias is None:
            return matrix
        return torch.cat([matrix, tensors[self.bias].to(self.dtype).unsqueeze(1)], 1)

    def split(self, name: str, matrix: Tensor) -> dict[str, Tensor]:
        """Return the parts of a joined matrix as (outputs, inputs) and (outputs), by name."""
        if self.bias is None:
            return {name: matrix}
        return {name: matrix[:, :-1], self.bias: matrix[:, -1]}

    def shaped(self, part: Tensor, like: Tensor) -> Tensor:
        """Return a part that `split` gave in the shape of its parameter."""
        return part.t() if self.inputs_first and part.ndim == 2 else part.reshape(like.shape)

    def apply(self, function: Callable[[Tensor], Tensor], distance: Tensor) -> Tensor:
        """Return f(H) Δ: each eigendirection of a joined matrix Δ times f of its precision.

        With both factors whole that is Q_G (f(H) ∘ Q_Gᵀ Δ Q_A) Q_Aᵀ. Directions that Q_G does not
        have share the eigenvalue r_G, so that f(r_G) is taken of all of Δ and f(s_G) − f(r_G) of
        what Q_G has of it; likewise for Q_A.

        Args:
            function: what is computed of the precisions, elementwise.
            distance: Δ.
        """
        outputs = self.outputs
        assert outputs.values is not None
        along = outputs.matrix.t() @ distance
        own = self._of_precisions(function, outputs.values)
        if not outputs.is_cut:
            return outputs.matrix @ self._apply_rows(own, along)
        rest = self._of_precisions(function, outputs.values.new_full((1,), outputs.rest))
        beyond = (own[0] - rest[0], own[1] - rest[1])
        return outputs.matrix @ self._apply_rows(beyond, along) + self._apply_rows(rest, distance)

    def _of_precisions(
        self, function: Callable[[Tensor], Tensor], outputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return f(H) for some eigenvalues of G: by eigenvector of A, and in the rest of them."""
        assert self.inputs.values is not None
        rows = (outputs / self.tasks).unsqueeze(1)
        rest = function(rows * self.inputs.rest + self.ridge)
        return function(rows * self.inputs.values + self.ridge), rest

    def _apply_rows(self, precisions: tuple[Tensor, Tensor], rows: Tensor) -> Tensor:
        """Return rows that are along eigenvectors of G times their f(H)."""
        vectors, (own, rest) = self.inputs.matrix, precisions
        if not self.inputs.is_cut:
            return ((rows @ vectors) * own) @ vectors.t()
        return ((rows @ vectors) * (own - rest)) @ vectors.t() + rest * rows

    def energy(self, distance: Tensor) -> Tensor:
        """Return E(Δ) of a joined matrix Δ."""
        outputs = self.outputs
        assert outputs.values is not None
        along = outputs.matrix.t() @ distance
        energy = self._energy_of_rows(outputs.values, along)
        if not outputs.is_cut:
            return energy
        rest = outputs.values.new_full((1,), outputs.rest)
        return energy + self._energy_of_rows(rest, distance - outputs.matrix @ along)

    def _energy_of_rows(self, outputs: Tensor, rows: Tensor) -> Tensor:
        """Return E of rows that are along eigenvectors of G, with their eigenvalues."""
        own, rest = self._of_precisions(lambda precision: precision, outputs)
        along = rows @ self.inputs.matrix
        energy = (own * along.square()).sum()
        if not self.inputs.is_cut:
            return energy
        return energy + (rest * (rows - along @ self.inputs.matrix.t()).square()).sum()

    def gradient(self, distance: Tensor) -> Tensor:
        """Return half of the gradient of E(Δ), G Δ A / T + ridge Δ."""
        return self.apply(lambda precision: precision, distance)

    def fitted(self, name: str, parameters: Mapping[str, Tensor]) -> "Layer":
        """Return the layer in the shapes, on the device and in the dtype of its parameters.

        New rows and columns are free. The parameters must have gained, not lost, some.
        """
        weight = parameters[name]
        dtype = at_least_float32(weight.dtype)
        outputs = weight.shape[1] if self.inputs_first else weight.shape[0]
        inputs = weight.numel() // outputs + (self.bias is not None)
        like = torch.empty(0, dtype=dtype, device=weight.device)
        same = (len(self.inputs.matrix), len(self.outputs.matrix)) == (inputs, outputs)
        if same and self.dtype == dtype and self.inputs.matrix.device == weight.device:
            return self
        return replace(
            self,
            inputs=self.inputs.to(like).grown(inputs, self.bias is not None),
            outputs=self.outputs.to(like).grown(outputs, False),
        )


def added(a: Layer, b: Layer) -> Layer:
    """Return the layer of all tasks of both, (G_a + G_b) ⊗ (A_a + A_b) / (T_a + T_b)."""
    return replace(
        b,
        inputs=Factor(a.inputs.full() + b.inputs.full()),
        outputs=Factor(a.outputs.full() + b.outputs.full()),
        **{name: getattr(a, name) + getattr(b, name) for name in b.SUMS},
    )


def faded(layer: Layer, decay: float) -> Layer:
    """Return the layer with its precision multiplied by γ, as that of γ T tasks."""
    return replace(
        layer,
        inputs=layer.inputs.scaled(decay),
        outputs=layer.outputs.scaled(decay),
        **{name: getattr(layer, name) * decay for name in layer.SUMS},
    )


def merged_layers(
    old: Mapping[str, Layer], new: Mapping[str, Layer], decay: float
) -> dict[str, Layer]:
    """Return the layers of old and new tasks; the old ones count γ times as much.

    Raises if a layer has another form than before.
    """
    layers = {name: faded(layer, decay) for name, layer in old.items()} if decay < 1 else {**old}
    for name, layer in new.items():
        if (before := layers.get(name)) is None or before.tasks == 0:
            layers[name] = layer
            continue
        if (before.bias, before.inputs_first) != (layer.bias, layer.inputs_first):
            raise ValueError(
                f"{name!r} is used in another way than when an earlier task was remembered: its "
                f"bias was {before.bias!r} and is {layer.bias!r}"
            )
        layers[name] = added(before, layer)
    return layers


def layers_of(
    fisher: KroneckerFisher, floor: float = 0.0, normalize: float | None = None
) -> tuple[dict[str, Layer], dict[str, Tensor]]:
    """Return the precision of one task: its layers, and the diagonal of the other parameters.

    Args:
        fisher: the Fisher of the task.
        floor: fraction of the mean of each layer's or parameter's diagonal that is added to it.
        normalize: the trace that all of it is scaled to after that.
    """
    diagonal, scale = shaped(fisher.diagonal, floor=floor), 1.0
    if normalize is not None:
        total = trace(diagonal) + (1 + floor) * sum(f.trace() for f in fisher.factors.values())
        scale = normalize / total if total > 0 else 1.0
        diagonal = {name: tensor * scale for name, tensor in diagonal.items()}
    layers = {name: Layer.of(own, floor, scale) for name, own in fisher.factors.items()}
    return layers, diagonal


def layer_diagonals(
    layers: Mapping[str, Layer], parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the diagonal precision of all parameters that are in layers, in their shapes."""
    return {
        own: layer.shaped(part, parameters[own])
        for name, layer in layers.items()
        for own, part in layer.diagonals(name).items()
    }


def check_factors(fisher: KroneckerFisher, parameters: Mapping[str, Tensor]) -> None:
    """Raise unless a Fisher has finite factors, or a diagonal, for each parameter and no other."""
    in_layers = set(fisher.factors) | {f.bias for f in fisher.factors.values()}
    names = (in_layers - {None}) | fisher.diagonal.keys()
    if names != parameters.keys():
        odd = sorted(map(str, names ^ parameters.keys()))
        raise ValueError(f"expected a Fisher of the selected parameters; only one has {odd}")
    for name, own in fisher.factors.items():
        layer, weight = Layer.of(own), parameters[name]
        outputs = weight.shape[1] if own.inputs_first else weight.shape[0]
        inputs = weight.numel() // outputs + (own.bias is not None)
        for matrix, size in ((layer.inputs.matrix, inputs), (layer.outputs.matrix, outputs)):
            if tuple(matrix.shape) != (size, size):
                raise ValueError(
                    f"expected a factor of shape {(size, size)} for {name!r}, got "
                    f"{tuple(matrix.shape)}"
                )
            if not bool(matrix.isfinite().all()) or not torch.allclose(matrix, matrix.t()):
                raise ValueError(f"expected finite, symmetric factors for {name!r}")
            if bool((matrix.diagonal() < 0).any()):
                raise ValueError(f"expected factors with a diagonal >= 0 for {name!r}")


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
        # ΔW − ΔW* = s (B A_l − B* A_l*) = s (d (A_l* + a) + B* a) = u v, whose energy needs no
        # matrix of the size of W: tr((u v)ᵀ G (u v) A) = Σ (uᵀ G u) ∘ (v A vᵀ).
        u = torch.cat([b, b_anchor], 1)  # [outputs, 2 · rank]
        v = self.scaling * torch.cat([a_anchor + a, a])  # [2 · rank, inputs]
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
