"""A memory of the weights that a model with LoRA adapters computes with, W = W₀ + ΔW, ΔW = s B A.

    penalty = (strength / 2) Σ_t Σ_ij F_tij (ΔW − ΔW*_t)_ij²

F is the Fisher of W, which is that of the frozen base weight W₀ at the same place. W₀ is the same
in W and in the anchor W* = W₀ + ΔW*, so that W − W* = ΔW − ΔW*. Only the factors A and B are
trained. This is the penalty of EWC-LoRA (ICLR 2026); `ewc.EWC` of the same model has one of A and B
themselves.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ewc.curvature.kronecker import AdapterLayer, Layer
from ewc.curvature.wells import Well, fitted
from ewc.diagnostics import Statistics
from ewc.distributed.ranks import ProcessGroup, Ranks, find_ranks
from ewc.distributed.shards import is_sharded
from ewc.fisher import KroneckerFactors, KroneckerFisher, fisher_kronecker
from ewc.fisher.batches import read_batches
from ewc.fisher.diagonal import check_batch_norms
from ewc.fisher.likelihood import check_options, cotangents, count_positions
from ewc.fisher.model import preserved
from ewc.memory import EWC, Curvature
from ewc.parameters import (
    ModelParameters,
    ParameterSelection,
    at_least_float32,
    name_before_peft,
    named_parameters,
)
from ewc.pull import Pull
from ewc.pull.kronecker import HeldForces
from ewc.step_size import How
from ewc.storage import (
    Rename,
    StoredTensors,
    curvature_of,
    fingerprint_of,
    keeps_tasks,
    load_state,
    saved_shapes,
    unpack,
)

try:
    from peft.tuners.lora.layer import Linear, LoraLayer
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
    adapters: dict[str, Adapter] = {}
    for place, layer, active in _adapted_layers(model):
        expected = _expected(place)
        a, b = (dict(matrices.items()).get(active[0]) for matrices in (layer.lora_A, layer.lora_B))
        if not (isinstance(a, nn.Linear) and isinstance(b, nn.Linear)):
            cls = f"{type(layer).__module__}.{type(layer).__name__}"
            raise ValueError(f"{expected} is a {cls}: only linear layers are known")
        _check_plain(place, layer, active)
        if any(layer.lora_bias.values()):
            raise ValueError(f"{expected} has a bias in its adapter (lora_bias): leave it out")
        if not (a.weight.requires_grad and b.weight.requires_grad):
            raise ValueError(f"{expected} has a frozen factor: with factors both must be trained")
        b_name = names[id(b.weight)]
        weight = f"{place}.base_layer.weight"
        adapters[b_name] = Adapter(
            layer, weight, names[id(a.weight)], b_name, layer.scaling[active[0]]
        )
    return adapters


def _adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any, list[str]]]:
    """Yield each LoRA layer that has active adapters: its name, itself, and their names."""
    for place, layer in model.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        if active := [name for name in layer.active_adapters if name in layer.r]:
            yield place, layer, active


def _expected(place: str) -> str:
    """Return how an error about a layer begins."""
    return f"expected LoRA layers of W = W₀ + s B A, but {place!r}"


def _check_plain(place: str, layer: Any, active: list[str]) -> None:
    """Raise unless a layer computes with the product of one adapter, apart from its base weight."""
    expected = _expected(place)
    if len(active) > 1:
        raise ValueError(f"{expected} has several active adapters, {active}: activate one")
    if variant := layer.lora_variant.get(active[0]):
        raise ValueError(f"{expected} is computed by {type(variant).__name__}: use plain LoRA")
    if layer.merged:
        raise ValueError(f"{expected} has a merged adapter: call unmerge_adapter() first")
    if layer.disable_adapters:
        raise ValueError(f"{expected} has its adapters disabled: enable them first")


class AdapterParameters(ModelParameters):
    """The matrices of the adapters, selected by the names of their base weights, and the rest."""

    def matching(self) -> Mapping[str, Tensor]:
        """Return the matrices of selected adapters, and other selected parameters."""
        own, chosen = named_parameters(self.model), super().matching()
        names = set(chosen)
        for adapter in adapters_of(self.model).values():
            # A quantized weight may be no parameter, which no pattern can leave out.
            if adapter.weight in chosen or adapter.weight not in own:
                names |= {adapter.a, adapter.b}
            else:
                names -= {adapter.a, adapter.b}
        return {name: parameter for name, parameter in own.items() if name in names}

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
    """Sums over the positions of one layer: Σ a aᵀ, Σ g gᵀ and Σ y yᵀ.

    Attributes:
        adapter: the layer.
        inputs: Σ a aᵀ, of its inputs [inputs, inputs].
        gradients: Σ g gᵀ, of the gradients at its outputs [outputs, outputs].
        outputs: Σ y yᵀ, of what its base weight computes [outputs, outputs].
        rows: the number of positions in the sums of inputs and outputs.
        seen: inputs and outputs of the present batch, once per call of the layer.
    """

    adapter: Adapter
    inputs: Tensor
    gradients: Tensor
    outputs: Tensor
    rows: int = 0
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @classmethod
    def zeros(cls, adapter: Adapter, like: Tensor) -> "AdapterSums":
        """Return empty sums for a layer."""
        outputs, inputs = adapter.layer.out_features, adapter.layer.in_features
        dtype = at_least_float32(like.dtype)
        a, g, y = (
            torch.zeros(n, n, dtype=dtype, device=like.device) for n in (inputs, outputs, outputs)
        )
        return cls(adapter, a, g, y)

    def note(self, module: nn.Module, args: Any, output: Tensor) -> None:
        """Note a call of the layer, as its forward hook."""
        self.seen.append((args[0], output))

    def add_seen(self) -> None:
        """Add the inputs and outputs of the present batch, which is over."""
        bias = getattr(self.adapter.layer.get_base_layer(), "bias", None)
        for inputs, outputs in self.seen:
            a, y = self._rows(inputs), self._rows(outputs)
            if bias is not None:
                y = y - bias.to(y)
            self.inputs.addmm_(a.t(), a)
            self.outputs.addmm_(y.t(), y)
            self.rows += len(a)
        self.seen.clear()

    def add_gradients(self, gradient: Tensor) -> None:
        """Add the gradients at the outputs of a batch, for one cotangent."""
        rows = self._rows(gradient)
        self.gradients.addmm_(rows.t(), rows)

    def factors(self, ranks: Ranks, samples: int, divisor: int) -> AdapterFactors:
        """Return the factors of W, over the samples of all ranks.

        Args:
            ranks: the ranks that share the model.
            samples: the number of samples.
            divisor: of Σ g gᵀ: the number of samples, or of positions that count.
        """
        for tensor in (self.inputs, self.gradients, self.outputs):
            ranks.sum_(tensor)
        (rows,) = ranks.sum(self.rows)
        inputs, gradients = self.inputs / max(rows, 1), self.gradients / divisor
        if not bool(inputs.sum().isfinite() & gradients.sum().isfinite()):
            raise ValueError(
                f"the Fisher of {self.adapter.weight!r} is not finite: its inputs or gradients "
                "overflow or are NaN"
            )
        at_zero = float((gradients * self.outputs).sum()) / max(rows, 1)
        return AdapterFactors(
            inputs, gradients, positions=max(rows / samples, 1.0), at_zero=at_zero
        )

    def _rows(self, tensor: Tensor) -> Tensor:
        return tensor.detach().flatten(0, -2).to(self.inputs.dtype)


@contextmanager
def _watched(sums: Iterable[AdapterSums]) -> Iterator[None]:
    """Note what goes into each layer and comes out of it."""
    hooks = [own.adapter.layer.register_forward_hook(own.note) for own in sums]
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
    likelihood, positions = options["likelihood"], options["positions"]
    check_options(options["kind"], likelihood, positions)
    if callable(likelihood):
        raise ValueError(
            "a callable likelihood has no factors with adapters: use 'categorical', 'gaussian' or "
            "'bernoulli', or curvature='diagonal'"
        )
    max_samples = options["max_samples"]
    if max_samples is not None and max_samples < 1:
        raise ValueError(f"max_samples must be at least 1, not {max_samples}")
    adapters = {name: own for name, own in adapters_of(model).items() if name in selected}
    rest = selected.keys() - {name for own in adapters.values() for name in (own.a, own.b)}
    batches = list(batches) if rest else batches  # they are read twice
    check_batch_norms(model)
    sums = [AdapterSums.zeros(own, selected[name]) for name, own in adapters.items()]
    ranks = find_ranks(model, options["process_group"])
    samples, counted = ranks.sum(*_add_batches(model, batches, sums, ranks, options))
    if samples == 0 or counted == 0:
        raise ValueError("batches is empty, or no position counts: expected at least one label")
    divisor = counted if positions == "mean" else samples
    factors: dict[str, KroneckerFactors] = {
        own.adapter.weight: own.factors(ranks, samples, divisor) for own in sums
    }
    if not rest:
        return KroneckerFisher(factors)
    other = fisher_kronecker(model, batches, **{**options, "parameters": rest.__contains__})
    return KroneckerFisher({**factors, **other.factors}, other.diagonal)


def _add_batches(
    model: nn.Module,
    batches: Iterable[Any],
    sums: Sequence[AdapterSums],
    ranks: Ranks,
    options: Mapping[str, Any],
) -> tuple[int, int]:
    """Add the batches of this rank to the sums; return how many samples, and positions that count.

    Args:
        model: the model.
        batches: the data of the task.
        sums: one per adapted layer.
        ranks: the ranks that share the model.
        options: those of `fisher_kronecker`.
    """
    kind, likelihood, generator = (options[name] for name in ("kind", "likelihood", "generator"))
    samples = counted = 0
    with preserved(model) as random_state, ranks.failing_together():
        if kind == "sampled":
            with random_state:
                generator = ranks.own_generator(generator)
        most = ranks.share(options["max_samples"])
        for batch in read_batches(batches, model) if most != 0 else ():
            if most is not None and samples + batch.size > most:
                batch = batch.take(0, most - samples)
            with random_state, _watched(sums):
                output = batch.outputs(model)
            vectors = cotangents(
                output,
                batch.targets,
                batch.mask,
                kind=kind,
                likelihood=likelihood,
                generator=generator,
                where=batch.where,
            )
            _add_gradients(output, vectors, sums, batch.where)
            for own in sums:
                own.add_seen()
            samples += batch.size
            counted += count_positions(output, batch.targets, batch.mask, likelihood)
            if samples == most:
                break
    return samples, counted


def _add_gradients(
    output: Tensor, vectors: Iterable[Tensor], sums: Sequence[AdapterSums], where: str
) -> None:
    """Add Σ g gᵀ of one batch, with one backward pass per cotangent.

    Args:
        output: what the model returned for the batch.
        vectors: the cotangents, each in the shape of the output.
        sums: one per adapted layer, which saw its calls in this batch.
        where: which batch it is, for an error.
    """
    owners = [own for own in sums for _ in own.seen]
    outputs = [output_of_layer for own in sums for _, output_of_layer in own.seen]
    if not output.requires_grad or not outputs:
        raise ValueError(f"the output for {where} does not depend on any adapter")
    for vector in vectors:
        gradients = torch.autograd.grad(
            output, outputs, vector.to(output.dtype), retain_graph=True, allow_unused=True
        )
        for own, gradient in zip(owners, gradients, strict=True):
            if gradient is not None:
                own.add_gradients(gradient)


UNREAD = "quantized ones are for LoraEWC(model, curvature='kronecker'), which does not read them"
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class LoraWeight:
    """W = W₀ + s B A of one layer, as its base layer has it: W₀ may be transposed (Conv1D)."""

    base: nn.Parameter
    a: nn.Parameter
    b: nn.Parameter
    scaling: float
    transposed: bool

    def value(self) -> Tensor:
        """Return W in at least float32, also under autocast, differentiable in the factors."""
        dtype = at_least_float32(torch.promote_types(self.base.dtype, self.a.dtype))
        with torch.enable_grad(), torch.autocast(self.base.device.type, enabled=False):
            product = self.b.to(dtype) @ self.a.to(dtype)
            return self.base + self.scaling * (product.T if self.transposed else product)


class LoraParameters(ModelParameters):
    """The weights of a model with W in the place of the base weight of each LoRA layer.

    The factors are left out. Other parameters, such as a head that is trained too, are as usual.
    """

    def all(self) -> Mapping[str, Tensor]:
        """Return all weights of the model, by name."""
        return self._with_products(super().all())

    def matching(self) -> Mapping[str, Tensor]:
        """Return the selected weights, including frozen ones."""
        return self._with_products(super().matching())

    def selected(self) -> Mapping[str, Tensor]:
        """Return the selected weights that can move."""
        adapted = lora_weights(self.model)
        if not adapted:
            raise ValueError(
                "expected a model with LoRA layers of PEFT, such as get_peft_model(model, "
                f"LoraConfig(...)) returns, but this {type(self.model).__name__} has none"
            )
        check_untied(self.model, adapted)
        selected = {name: w for name, w in self.matching().items() if w.requires_grad}
        if not selected.keys() & adapted.keys():
            raise ValueError(
                "expected at least one trainable LoRA layer, but "
                f"parameters={self._selection!r} selects none; the memory knows them by their base "
                f"weights, such as {next(iter(adapted))!r}"
            )
        return selected

    def sources(self) -> Mapping[str, tuple[Tensor, ...]]:
        """Return what each W is computed from."""
        return {name: (w.base, w.a, w.b) for name, w in lora_weights(self.model).items()}

    @contextmanager
    def differentiable(self) -> Iterator[None]:
        """Let base weights require gradients: their Fisher is that of W."""
        selected = self.selected()
        bases = [w.base for name, w in lora_weights(self.model).items() if name in selected]
        before = [base.requires_grad for base in bases]
        try:
            for base in bases:
                base.requires_grad_(True)
            yield
        finally:
            for base, required in zip(bases, before, strict=True):
                base.requires_grad_(required)

    def _with_products(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        products = lora_weights(self.model)
        factors = {id(factor) for w in products.values() for factor in (w.a, w.b)}
        return {
            name: products[name].value() if name in products else parameter
            for name, parameter in parameters.items()
            if id(parameter) not in factors
        }


class LoraEWC(EWC):
    """A memory of W = W₀ + ΔW of each LoRA layer, where `ewc.EWC` has one of the factors A and B.

    It keeps what the base model knew if it is consolidated right after `get_peft_model`, where
    ΔW = 0, and what an adapter learned if it is consolidated later. In the memory, a layer has the
    name of its base weight, and takes two elements per base weight. Trainable parameters that are
    no factors, such as a head in `modules_to_save`, are remembered as by `ewc.EWC`.

    With `curvature="kronecker"` the memory has the factors of each layer's inputs and of the
    gradients at its outputs. The penalty of ΔW goes through them to A and B, and no matrix of the
    size of W is formed. W₀ is never read, so it may be quantized. In the memory, a layer then has
    the names of its A and B.

    The LoRA layers must be linear ones (`nn.Linear` or the `Conv1D` of GPT-2), with one active
    adapter that is not merged; with a diagonal in float16, bfloat16, float32 or float64. DoRA and
    other variants, embeddings, convolutions and sharded weights are refused.

    Arguments and methods are those of `ewc.EWC`, but `attach` pulls through the gradient. A memory
    of the model before it had adapters is loaded for them.

    Example:
        >>> from peft import LoraConfig, get_peft_model
        >>> from ewc.integrations.peft import LoraEWC
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3))
        >>> model = get_peft_model(net, LoraConfig(r=2, target_modules=["0", "1"]))
        >>> memory = LoraEWC(model, strength=100.0)
        >>> fisher = memory.consolidate([torch.randn(8, 4)], task="base model")
        >>> list(fisher)
        ['base_model.model.0.base_layer.weight', 'base_model.model.1.base_layer.weight']
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        strength: float | None = None,
        budget: float | Literal["auto"] | None = None,
        decay: float = 1.0,
        curvature: Curvature = "diagonal",
        parameters: ParameterSelection = None,
        keep_tasks: bool | str | torch.device = False,
        statistics: Statistics = "hold",
        process_group: ProcessGroup = None,
    ) -> None:
        reader = LoraParameters if curvature == "diagonal" else AdapterParameters
        super().__init__(
            model,
            strength=strength,
            budget=budget,
            decay=decay,
            curvature=curvature,
            parameters=reader(model, parameters),
            keep_tasks=keep_tasks,
            statistics=statistics,
            process_group=process_group,
        )

    @classmethod
    def _from_stored(
        cls,
        stored: StoredTensors,
        model: nn.Module,
        *,
        rename: Rename | None = None,
        **options: Any,
    ) -> Self:
        """Return the memory in a file, which may be of the model before it had adapters."""
        in_file = saved_shapes(stored, rename)
        if rename is None:
            names = adapted_names(model)
            rename = {name: names[name] for name in in_file if name in names}
            in_file = saved_shapes(stored, rename)
        of_base = curvature_of(stored.tensors) == "kronecker" and not _of_factors(in_file)
        if not of_base:
            return super()._from_stored(stored, model, rename=rename, **options)
        return cls._of_base(stored, model, rename, **options)

    @classmethod
    def _of_base(
        cls,
        stored: StoredTensors,
        model: nn.Module,
        rename: Rename,
        *,
        keep_tasks: bool | str | torch.device | None = None,
        grow: bool = False,
        strength: float | None = None,
        budget: float | Literal["auto"] | None = None,
        **options: Any,
    ) -> Self:
        """Return the memory in a file of Kronecker factors of the base weights, for their adapters.

        Base weights are not looked at if the file has anchors: they may be quantized.
        """
        if keep_tasks is None:
            keep_tasks = keeps_tasks(stored.tensors)
        made = cls(
            model,
            strength=strength,
            budget=budget,
            curvature="kronecker",
            keep_tasks=keep_tasks,
            **options,
        )
        own = made._parameters.selected()
        adapters = {name: each for name, each in adapters_of(model).items() if name in own}
        weights: dict[str, Tensor] = {**named_parameters(model)}
        for name, shape in saved_shapes(stored, rename).items():
            if shape is not None and (name not in weights or tuple(weights[name].shape) != shape):
                weights[name] = torch.empty(shape)  # of a quantized weight, which is not read
        state = load_state(stored, weights, rename=rename, grow=grow)
        there = {name: torch.empty_like(weight, device="cpu") for name, weight in weights.items()}
        wells, control, labels, _ = unpack(state, made._wells, there, "kronecker")
        wells = replace(
            wells,
            total=adapted_well(wells.total, adapters, own),
            kept={task: adapted_well(well, adapters, own) for task, well in wells.kept.items()},
        ).leave_none_out()
        if strength is not None or budget is not None:
            control = made._strength.control
        made._restore(wells, control, labels, HeldForces(), fingerprint_of(own.values()), own)
        return made

    @staticmethod
    def _weights_to_compare(
        model: nn.Module, shapes: Mapping[str, tuple[int, ...] | None]
    ) -> list[Tensor] | None:
        """Return W of this model, or W₀ where a file is of the model before it had adapters."""
        names, own = adapted_names(model), named_parameters(model)
        of_base = shapes.keys() & names.keys()
        shapes = {names.get(name, name): shape for name, shape in shapes.items()}
        weights: Mapping[str, Tensor] = own
        if not of_base and not _of_factors(shapes):
            weights = LoraParameters(model, None).all()
        same = all(
            name in weights and shape in (None, tuple(weights[name].shape))
            for name, shape in shapes.items()
        )
        return [weights[name].detach() for name in shapes] if same else None

    def _fisher(
        self, batches: Iterable[Any], options: Mapping[str, Any], at_least: int = 1
    ) -> dict[str, Tensor] | KroneckerFisher:
        """Return the Fisher of what is protected, with factors that of the layers' inputs."""
        if self.curvature == "diagonal":
            return super()._fisher(batches, options, at_least)
        return fisher_of_adapters(
            self.model,
            self._label_check.watch(batches, at_least),
            self._parameters.selected(),
            **{**options, "process_group": self.process_group},
        )

    def _layers_of(
        self, fisher: KroneckerFisher, floor: float, normalize: float | None
    ) -> tuple[Mapping[str, Layer], dict[str, Tensor]]:
        """Return the precision of a task, with that of the adapters in their two matrices."""
        layers, diagonal = super()._layers_of(fisher, floor, normalize)
        made = dict(layers)
        for name, adapter in adapters_of(self.model).items():
            if adapter.weight not in layers:
                continue
            own, layer = fisher.factors[adapter.weight], made.pop(adapter.weight)
            # What normalizing multiplied the Fisher by.
            scale = float(layer.outputs.matrix.trace() / own.outputs.trace().clamp_min(1e-38))
            at_zero = own.at_zero * scale if isinstance(own, AdapterFactors) else 0.0
            made[name] = AdapterLayer.of_layer(layer, adapter.a, adapter.scaling, at_zero)
        return made, diagonal

    def _ready_factors(
        self,
        fisher: KroneckerFisher,
        options: Mapping[str, Any],
        selected: Mapping[str, Tensor],
    ) -> KroneckerFisher:
        """Refuse a Fisher that the user gave: a file of the base model is loaded in its place."""
        raise ValueError(
            "a LoraEWC takes no ready factors: save a memory of the base model with "
            "save_pretrained(DIR), and load it with LoraEWC.from_pretrained(DIR, model)"
        )

    def attach(self, optimizer: Optimizer, how: How = "gradient") -> Pull:
        """Pull on the factors at every `optimizer.step()` until `remove()` of the returned handle.

        The gradient of the penalty, s G Aᵀ for B and s Bᵀ G for A with G = λ F (W − W*), is added
        before the step, after any clipping. Adam and its kin divide by the size of the gradient:
        their steps stay bounded for every strength. Plain SGD diverges if lr times the curvature is
        above 2, λ s² A diag(F_i) Aᵀ for row i of B. It changes with A, so there is no warning.

        Args:
            optimizer: an optimizer of the adapter's parameters.
            how: `"gradient"`. A proximal step in A and B together has no closed form.

        Example:
            >>> from peft import LoraConfig, get_peft_model
            >>> from ewc.integrations.peft import LoraEWC
            >>> net = torch.nn.Sequential(torch.nn.Linear(4, 3))
            >>> model = get_peft_model(net, LoraConfig(r=2, target_modules=["0"]))
            >>> memory = LoraEWC(model, strength=100.0)
            >>> optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
            >>> handle = memory.attach(optimizer)
        """
        if how == "proximal":
            raise ValueError(
                "LoraEWC pulls through the gradient: expected how='gradient', got how='proximal'"
            )
        return super().attach(optimizer, how)


def lora_weights(model: nn.Module) -> dict[str, LoraWeight]:
    """Return W of each LoRA layer that has an active adapter, by the name of its base weight.

    Raises for layers whose weight is not W₀ + s B A, or not known.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    weights = {}
    for place, layer, active in _adapted_layers(model):
        weight = _lora_weight(place, layer, active)
        weights[names[id(weight.base)]] = weight
    return weights


def adapted_well(
    well: Well, adapters: Mapping[str, Adapter], selected: Mapping[str, Tensor]
) -> Well:
    """Return the well of a model's base weights as one of their adapters, around ΔW = 0.

    What is not trained is left out. Raises if a base weight has no factors.

    Args:
        well: the well, with the names of the adapted model.
        adapters: the adapted layers, by the names of their B.
        selected: what is trained, by name.
    """
    layers: dict[str, Layer] = {n: layer for n, layer in well.layers.items() if n in selected}
    anchor = {name: tensor for name, tensor in well.anchor.items() if name in selected}
    for name, adapter in adapters.items():
        if adapter.weight not in well.layers:
            raise ValueError(
                "the memory of the base model has no Kronecker factors of "
                f"{adapter.weight!r}, which is adapted: leave it out of target_modules, or with "
                "parameters='!...'"
            )
        layer, b, a = well.layers[adapter.weight], selected[name], selected[adapter.a]
        parts = (adapter.weight,) if layer.bias is None else (adapter.weight, layer.bias)
        weight = {part: well.anchor[part] for part in parts}
        if layer.bias is not None:
            weight[layer.bias] = torch.zeros_like(weight[layer.bias])
        at_zero = float(layer.decomposed().energy(layer.joined(adapter.weight, weight, {})))
        made: Layer = AdapterLayer.of_layer(layer, adapter.a, adapter.scaling, at_zero)
        if layer.inputs.values is not None:  # that of a task alone is not used as it is
            made = made.decomposed()
        layers[name] = made.fitted(name, selected)
        anchor[name] = torch.zeros_like(b, dtype=at_least_float32(b.dtype))
        anchor[adapter.a] = a.detach().to(at_least_float32(a.dtype), copy=True)
    made_well = Well(
        {name: tensor for name, tensor in well.precision.items() if name in selected},
        anchor,
        well.offset,
        {name: tensor for name, tensor in well.remainder.items() if name in selected},
        layers,
    )
    return fitted(made_well, selected)


def _of_factors(names: Iterable[str]) -> bool:
    """Whether these are names of the matrices of adapters, as a memory with factors has them."""
    return any(".lora_B." in name for name in names)


def adapted_names(model: nn.Module) -> dict[str, str]:
    """Return the name that each weight has now, by its name before `get_peft_model`.

    Of a module that is trained as a whole (`modules_to_save`), the copy that is trained.
    """
    bases = [n for n, module in model.named_modules() if isinstance(module, LoraLayer)]
    new_names = {}
    for name in (*named_parameters(model), *(f"{base}.base_layer.weight" for base in bases)):
        before = re.sub(r"\.modules_to_save\.[^.]+\.", ".", name_before_peft(name))
        if before != name and not {"original_module", "lora_A", "lora_B"} & set(name.split(".")):
            new_names[before] = name
    return new_names


def check_untied(model: nn.Module, weights: Mapping[str, LoraWeight]) -> None:
    """Raise for a base weight that is used elsewhere too: there, ΔW is not added."""
    bases = {id(w.base): name for name, w in weights.items()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = bases.get(id(parameter), name)
        if name != first:
            raise ValueError(
                f"expected base weights of their own, but {first!r} is also {name!r}, where the "
                "adapter has no effect: leave the layer out of target_modules"
            )


def _lora_weight(place: str, layer: Any, active: list[str]) -> LoraWeight:
    """Return W of a layer; raise unless it computes with W₀ + s B A in floating point."""
    expected = _expected(place)
    if type(layer) is not Linear:
        cls = f"{type(layer).__module__}.{type(layer).__name__}"
        raise ValueError(
            f"{expected} is a {cls}: only linear layers in floating point are known; {UNREAD}"
        )
    _check_plain(place, layer, active)
    base = getattr(layer.get_base_layer(), "weight", None)
    if not isinstance(base, nn.Parameter) or base.dtype not in FLOATS or is_sharded(base):
        how = "no parameter" if not isinstance(base, nn.Parameter) else f"of dtype {base.dtype}"
        if isinstance(base, nn.Parameter) and is_sharded(base):
            how = "sharded"
        raise ValueError(f"{expected} has a base weight that is {how}; {UNREAD}")
    a, b = (factors[active[0]].get_parameter("weight") for factors in (layer.lora_A, layer.lora_B))
    return LoraWeight(base, a, b, layer.scaling[active[0]], layer.fan_in_fan_out)
