"""Kronecker factors of layers with LoRA adapters, by what goes into each layer and comes out of it.

The factors of W = W₀ + s B A_l are those of the layer's inputs and of the gradients at its outputs.
So W₀ needs no gradient and is never read: it may be quantized.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ewc.distributed.ranks import find_ranks
from ewc.fisher import KroneckerFactors, KroneckerFisher, fisher_kronecker
from ewc.fisher.batches import read_batches
from ewc.fisher.diagonal import check_batch_norms
from ewc.fisher.likelihood import check_options, cotangents, count_positions
from ewc.fisher.model import preserved
from ewc.parameters import ModelParameters, at_least_float32, named_parameters

try:
    from peft.tuners.lora.layer import LoraLayer
except ImportError as error:  # pragma: no cover
    raise ImportError(
        "ewc.integrations.peft needs the extra 'peft': pip install 'ewc[peft]'"
    ) from error


@dataclass(frozen=True)
class Adapter:
    """A layer that computes with W₀ + s B A_l.

    Attributes:
        layer: the layer of PEFT.
        weight: the name of W₀, by which users know it.
        a: the name of A_l.
        b: the name of B.
        scaling: s.
    """

    layer: Any
    weight: str
    a: str
    b: str
    scaling: float


def adapters_of(model: nn.Module) -> dict[str, Adapter]:
    """Return the adapted layers by the names of their B; raise for what is no W₀ + s B A_l."""
    names = {id(parameter): name for name, parameter in named_parameters(model).items()}
    found: dict[str, Adapter] = {}
    for place, layer in model.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        active = [name for name in layer.active_adapters if name in layer.r]
        if not active:
            continue
        expected = f"expected LoRA layers of W = W₀ + s B A, but {place!r}"
        a, b = (dict(matrices.items()).get(active[0]) for matrices in (layer.lora_A, layer.lora_B))
        if not (isinstance(a, nn.Linear) and isinstance(b, nn.Linear)):
            kind = f"{type(layer).__module__}.{type(layer).__name__}"
            raise ValueError(f"{expected} is a {kind}: only linear layers are known")
        if len(active) > 1:
            raise ValueError(f"{expected} has several active adapters, {active}: activate one")
        if variant := layer.lora_variant.get(active[0]):
            raise ValueError(f"{expected} is computed by {type(variant).__name__}: use plain LoRA")
        if any(layer.lora_bias.values()):
            raise ValueError(f"{expected} has a bias in its adapter (lora_bias): leave it out")
        if layer.merged:
            raise ValueError(f"{expected} has a merged adapter: call unmerge_adapter() first")
        if layer.disable_adapters:
            raise ValueError(f"{expected} has its adapters disabled: enable them first")
        if not (a.weight.requires_grad and b.weight.requires_grad):
            raise ValueError(f"{expected} has a frozen factor: with factors both must be trained")
        b_name = names[id(b.weight)]
        weight = f"{place}.base_layer.weight"
        found[b_name] = Adapter(
            layer, weight, names[id(a.weight)], b_name, layer.scaling[active[0]]
        )
    return found


class AdapterParameters(ModelParameters):
    """The matrices of the adapters, selected by the names of their base weights, and the rest."""

    def matching(self) -> Mapping[str, Tensor]:
        """Return the matrices of selected adapters, and other selected parameters."""
        own, chosen = named_parameters(self.model), super().matching()
        found = dict(chosen)
        for one in adapters_of(self.model).values():
            # A quantized weight may be no parameter, which no pattern can leave out.
            is_selected = one.weight in chosen or one.weight not in own
            for name in (one.a, one.b):
                found.pop(name, None)
                if is_selected:
                    found[name] = own[name]
        return {name: found[name] for name in own if name in found}

    def selected(self) -> Mapping[str, Tensor]:
        """Return the selected parameters that are trained."""
        adapters = adapters_of(self.model)
        if not adapters:
            raise ValueError(
                "expected a model with LoRA layers of PEFT, such as get_peft_model(model, "
                f"LoraConfig(...)) returns, but this {type(self.model).__name__} has none"
            )
        selected = {name: p for name, p in self.matching().items() if p.requires_grad}
        if not selected.keys() & adapters.keys():
            raise ValueError(
                f"expected at least one LoRA layer, but parameters={self._selection!r} selects "
                "none; the memory knows them by their base weights, such as "
                f"{next(iter(adapters.values())).weight!r}"
            )
        return selected


@dataclass(frozen=True)
class AdapterFactors(KroneckerFactors):
    """The Fisher of one adapted weight.

    Attributes:
        at_zero: tr(G W A Wᵀ), which is E[yᵀ G y] for what W computes, y = W a.
    """

    at_zero: float = 0.0


@dataclass
class AdapterSums:
    """Sums over the positions of one layer: Σ a aᵀ, Σ g gᵀ and Σ y yᵀ."""

    inputs: Tensor
    gradients: Tensor
    outputs: Tensor
    rows: int = 0
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # inputs, outputs of a batch

    @classmethod
    def zeros(cls, adapter: Adapter, like: Tensor) -> "AdapterSums":
        """Return empty sums for a layer."""
        outputs, inputs = adapter.layer.out_features, adapter.layer.in_features
        dtype = at_least_float32(like.dtype)
        a, g, y = (
            torch.zeros(n, n, dtype=dtype, device=like.device) for n in (inputs, outputs, outputs)
        )
        return cls(a, g, y)

    def add(self, bias: Tensor | None) -> None:
        """Add what was seen of a batch: its inputs and outputs."""
        for inputs, outputs in self.seen:
            a, y = self._rows(inputs), self._rows(outputs)
            if bias is not None:
                y = y - bias.to(y)
            self.inputs.addmm_(a.t(), a)
            self.outputs.addmm_(y.t(), y)
            self.rows += len(a)

    def add_gradients(self, gradient: Tensor) -> None:
        """Add the gradients at the outputs of a batch, for one cotangent."""
        rows = self._rows(gradient)
        self.gradients.addmm_(rows.t(), rows)

    def _rows(self, tensor: Tensor) -> Tensor:
        return tensor.detach().flatten(0, -2).to(self.inputs.dtype)


@contextmanager
def _watched(adapters: Mapping[str, Adapter], sums: Mapping[str, AdapterSums]) -> Iterator[None]:
    """Note what goes into each layer and comes out of it."""

    def note(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            sums[name].seen.append((args[0], output))

        return hook

    hooks = [one.layer.register_forward_hook(note(name)) for name, one in adapters.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def fisher_of_adapters(
    model: nn.Module, batches: Iterable[Any], selected: Mapping[str, Tensor], **options: Any
) -> KroneckerFisher:
    """Return the Fisher of adapted weights as factors, by the names of their base weights.

    Other parameters that are selected have theirs as `fisher_kronecker` gives it.

    Args:
        model: a model with LoRA layers.
        batches: the data of the task.
        selected: the parameters that are protected.
        options: those of `fisher_kronecker`.
    """
    kind, likelihood, positions = (options[name] for name in ("kind", "likelihood", "positions"))
    check_options(kind, likelihood, positions)
    if callable(likelihood):
        raise ValueError(
            "a callable likelihood has no factors with adapters: use 'categorical', 'gaussian' or "
            "'bernoulli', or curvature='diagonal'"
        )
    max_samples, group = options["max_samples"], options["process_group"]
    if max_samples is not None and max_samples < 1:
        raise ValueError(f"max_samples must be at least 1, not {max_samples}")
    adapters = {name: one for name, one in adapters_of(model).items() if name in selected}
    rest = selected.keys() - {name for one in adapters.values() for name in (one.a, one.b)}
    batches = list(batches) if rest else batches  # they are read twice
    check_batch_norms(model)
    sums = {name: AdapterSums.zeros(one, selected[name]) for name, one in adapters.items()}
    ranks = find_ranks(model, group)
    samples = counted = 0
    with preserved(model) as random_state, ranks.failing_together():
        generator = options["generator"]
        if kind == "sampled":
            with random_state:
                generator = ranks.own_generator(generator)
        most = ranks.share(max_samples)
        for batch in read_batches(batches, model) if most != 0 else ():
            if most is not None and samples + batch.size > most:
                batch = batch.take(0, most - samples)
            with random_state, _watched(adapters, sums):
                output = batch.outputs(model)
            outputs = [y for own in sums.values() for _, y in own.seen]
            owners = [own for own in sums.values() for _ in own.seen]
            if not output.requires_grad or not outputs:
                raise ValueError(f"the output for {batch.where} does not depend on any adapter")
            for vector in cotangents(
                output,
                batch.targets,
                batch.mask,
                kind=kind,
                likelihood=likelihood,
                generator=generator,
                where=batch.where,
            ):
                vector = vector.to(output.dtype)
                found = torch.autograd.grad(
                    output, outputs, vector, retain_graph=True, allow_unused=True
                )
                for own, gradient in zip(owners, found, strict=True):
                    if gradient is not None:
                        own.add_gradients(gradient)
            for name, own in sums.items():
                own.add(getattr(adapters[name].layer.get_base_layer(), "bias", None))
                own.seen.clear()
            samples += batch.size
            counted += count_positions(output, batch.targets, batch.mask, likelihood)
            if samples == most:
                break
    samples, counted = ranks.sum(samples, counted)
    if samples == 0 or counted == 0:
        raise ValueError("batches is empty, or no position counts: expected at least one label")
    divisor = counted if positions == "mean" else samples
    factors: dict[str, KroneckerFactors] = {}
    for name, own in sums.items():
        for tensor in (own.inputs, own.gradients, own.outputs):
            ranks.sum_(tensor)
        (rows,) = ranks.sum(own.rows)
        inputs, gradients = own.inputs / max(rows, 1), own.gradients / divisor
        if not bool(inputs.sum().isfinite() & gradients.sum().isfinite()):
            raise ValueError(
                f"the Fisher of {adapters[name].weight!r} is not finite: its inputs or gradients "
                "overflow or are NaN"
            )
        at_zero = float((gradients * own.outputs).sum()) / max(rows, 1)
        factors[adapters[name].weight] = AdapterFactors(
            inputs, gradients, positions=max(rows / samples, 1.0), at_zero=at_zero
        )
    if not rest:
        return KroneckerFisher(factors)
    other = fisher_kronecker(model, batches, **{**options, "parameters": rest.__contains__})
    return KroneckerFisher({**factors, **other.factors}, other.diagonal)
