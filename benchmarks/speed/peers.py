"""The diagonal Fisher as other libraries compute it, each used as its documentation says.

A peer takes a model (its own copy, as some leave hooks in it) and returns a function from batches
to the Fisher, a mean over samples by parameter name. So the setup is not part of the time. The
peers in `EMPIRICAL` compute what `kind="empirical"` does, and `EXACT` what `kind="exact"` does.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.measure import library
from benchmarks.speed.models import Batches, total_cross_entropy

Fisher = dict[str, Tensor]
FisherFunction = Callable[[Batches], Fisher]
Peer = Callable[[nn.Module], FisherFunction]


def samples_in(batches: Batches) -> int:
    """Return the number of samples in all batches."""
    return sum(len(targets) for _, targets in batches)


def zeros(model: nn.Module) -> Fisher:
    """Return a Fisher of zeros."""
    return {name: torch.zeros_like(p.detach()) for name, p in model.named_parameters()}


def mean(totals: Fisher, batches: Batches) -> Fisher:
    """Divide sums over samples by the number of samples."""
    return {name: total / samples_in(batches) for name, total in totals.items()}


def by_name(flat: Tensor, model: nn.Module) -> Fisher:
    """Split a flat vector into the parameters, in their order."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    parts = flat.split([p.numel() for p in parameters])
    return {n: part.view_as(p) for n, part, p in zip(names, parts, parameters, strict=True)}


def batch_of_one(model: nn.Module) -> FisherFunction:
    """The slow reference: one backward pass per sample."""

    def fisher(batches: Batches) -> Fisher:
        totals = zeros(model)
        parameters = list(model.parameters())
        for inputs, targets in batches:
            for x, y in zip(inputs.split(1), targets.split(1), strict=True):
                grads = torch.autograd.grad(total_cross_entropy(model(x), y), parameters)
                for total, grad in zip(totals.values(), grads, strict=True):
                    total.addcmul_(grad, grad)
        return mean(totals, batches)

    return fisher


def torch_func(model: nn.Module) -> FisherFunction:
    """`vmap(grad)` of `torch.func`, squared."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, parameters, (x.unsqueeze(0),))
        return total_cross_entropy(outputs, y.unsqueeze(0))

    sample_gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def fisher(batches: Batches) -> Fisher:
        totals = zeros(model)
        for inputs, targets in batches:
            for name, grads in sample_gradients(parameters, inputs, targets).items():
                totals[name] += grads.square().sum(0)
        return mean(totals, batches)

    return fisher


def backpack(model: nn.Module, name: str = "SumGradSquared") -> FisherFunction:
    """BackPACK's second moment of the gradients, for a sum of losses."""
    package = library("backpack")
    extension = getattr(library("backpack.extensions"), name)()
    package.extend(model)
    criterion = package.extend(nn.CrossEntropyLoss(reduction="sum"))

    def fisher(batches: Batches) -> Fisher:
        totals = zeros(model)
        for inputs, targets in batches:
            outputs = model(inputs)
            if outputs.ndim > 2:  # only if needed: flatten hides the last module from BackPACK
                outputs, targets = outputs.flatten(0, -2), targets.flatten()
            with package.backpack(extension):
                criterion(outputs, targets).backward()
            for name, p in model.named_parameters():
                totals[name] += getattr(p, extension.savefield)
                p.grad = None
        return mean(totals, batches)

    return fisher


def backpack_exact(model: nn.Module) -> FisherFunction:
    """BackPACK's exact diagonal of the generalized Gauss-Newton, here the same as the Fisher."""
    return backpack(model, "DiagGGNExact")


def opacus(model: nn.Module) -> FisherFunction:
    """Opacus' per-sample gradients, squared."""
    wrapped = library("opacus").GradSampleModule(model, loss_reduction="sum")

    def fisher(batches: Batches) -> Fisher:
        totals = zeros(model)
        for inputs, targets in batches:
            wrapped.zero_grad()
            total_cross_entropy(wrapped(inputs), targets).backward()
            for name, p in model.named_parameters():
                totals[name] += p.grad_sample.square().sum(0)  # type: ignore[attr-defined]
        return mean(totals, batches)

    return fisher


def nngeometry(model: nn.Module) -> FisherFunction:
    """NNGeometry's diagonal of the gradient covariance of log p(label)."""
    backend = library("nngeometry.backend").TorchHooksJacobianBackend
    collection = library("nngeometry.layercollection").LayerCollection.from_model(model)
    diagonal = library("nngeometry.object").PMatDiag

    def log_likelihood(inputs: Tensor, targets: Tensor) -> Tensor:
        chosen: Tensor = model(inputs).log_softmax(-1).gather(-1, targets.unsqueeze(-1))
        return chosen.flatten(1).sum(1, keepdim=True)

    def fisher(batches: Batches) -> Fisher:
        generator = backend(layer_collection=collection, model=model, function=log_likelihood)
        matrix = diagonal(generator=generator, examples=_loader(batches))
        return by_name(matrix.get_diag() * len(batches) / samples_in(batches), model)

    return fisher


def nngeometry_exact(model: nn.Module) -> FisherFunction:
    """NNGeometry's Fisher, with the expectation over the labels in closed form."""
    metrics = library("nngeometry.metrics")
    diagonal = library("nngeometry.object").PMatDiag

    def fisher(batches: Batches) -> Fisher:
        matrix = metrics.FIM(model, _loader(batches), diagonal)
        return by_name(matrix.get_diag() * len(batches) / samples_in(batches), model)

    return fisher


def _loader(batches: Batches) -> DataLoader[tuple[Tensor, Tensor]]:
    """Return a loader of these batches; NNGeometry's mean then counts each batch as one sample.

    It computes gradients with respect to the inputs, so it gets detached tensors.
    """
    items = [(inputs.detach(), targets) for inputs, targets in batches]
    return DataLoader(items, batch_size=None)  # type: ignore[arg-type]


def laplace(model: nn.Module) -> FisherFunction:
    """laplace-torch's diagonal of the empirical Fisher, from its curvlinops backend."""
    backend = library("laplace.curvature.curvlinops").CurvlinopsEF
    curvature = backend(_ClassesSecond(model), likelihood="classification")

    def fisher(batches: Batches) -> Fisher:
        total = sum(curvature.diag(inputs, targets)[1] for inputs, targets in batches)
        assert isinstance(total, Tensor)
        return by_name(total / samples_in(batches), model)

    return fisher


class _ClassesSecond(nn.Module):
    """Moves the classes to the second dimension, where `CrossEntropyLoss` expects them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.model(inputs)
        return outputs.movedim(-1, 1)


EMPIRICAL: dict[str, Peer] = {
    "batch-of-one loop": batch_of_one,
    "torch.func vmap(grad)": torch_func,
    "BackPACK": backpack,
    "Opacus": opacus,
    "nngeometry": nngeometry,
    "laplace-torch": laplace,
}
EXACT: dict[str, Peer] = {"BackPACK": backpack_exact, "nngeometry": nngeometry_exact}
