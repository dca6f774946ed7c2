"""Running a model without changing it: modes, buffers, weights, hooks and random number states."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import chain
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ewc.diagnostics import warn
from ewc.fisher.batches import FisherBatch, is_encoder_decoder, map_leaves, sample_tensors
from ewc.fisher.likelihood import LogLikelihood, take_values
from ewc.fisher.per_sample.graph import Graph
from ewc.fisher.per_sample.plan import Probe
from ewc.fisher.per_sample.rules import correct_batch_norms
from ewc.fisher.per_sample.watch import InputWritten, Watch
from ewc.parameters import at_least_float32, widened


@contextmanager
def preserved(model: nn.Module) -> Iterator["PrivateRandomState"]:
    """Run the model in eval mode, with gradients on and compiled parts eager.

    Afterwards everything is as before, also after an error. Yields the context in which the model
    is to be run, so that its random numbers are drawn there.
    """
    _refuse_torchscript(model)
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        if _is_recurrent(model):
            stack.enter_context(_cudnn_off())
        if "torch._dynamo" in sys.modules:  # a compiled module or function hides the graph
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_modes_and_tensors_restored(model))
        stack.enter_context(_parameter_hooks_off(model))
        for module in model.modules():
            module.training = False  # `eval()` may do more, such as merge a LoRA into its weight
        yield PrivateRandomState(model)


def _refuse_torchscript(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and any(True for _ in module.parameters()):
            raise TypeError(
                f"{name or 'the model'} is a module of TorchScript, which hides its graph: "
                "use the Python module that it was made from"
            )


@contextmanager
def _cudnn_off() -> Iterator[None]:
    """Do without cuDNN, which has no backward for recurrent layers in eval mode.

    `torch.backends.cudnn.flags` would set its other flags, such as TF32, to their defaults.
    """
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


class PrivateRandomState:
    """A context with its own random number states, which continue at the next entry.

    They start from the global states, which do not change. The data loader must draw outside of
    this context: inside it would shuffle in the same order every time.
    """

    def __init__(self, model: nn.Module) -> None:
        indices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
        self.devices = sorted(device for device in indices if device is not None)
        self.inner: list[Tensor] | None = None
        self.outer: list[Tensor] = []

    def __enter__(self) -> None:
        self.outer = self._states()
        if self.inner is not None:
            self._set(self.inner)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.inner = self._states()
        self._set(self.outer)

    def _states(self) -> list[Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in self.devices)]

    def _set(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        for device, state in zip(self.devices, states[1:], strict=True):
            torch.cuda.set_rng_state(state, device)


@contextmanager
def _modes_and_tensors_restored(model: nn.Module) -> Iterator[None]:
    """Restore modes, buffers, and the rows that an embedding with `max_norm` rescales."""
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, dict(module._buffers))
        for module in model.modules()
        if not isinstance(module, torch.jit.ScriptModule)  # whose buffers are fixed
    ]
    copies = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    versions = {name: parameter._version for name, parameter in model.named_parameters()}
    rescaled = [
        (module.weight, module.weight.detach().clone())
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None
    ]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for module, own in buffers:
            module._buffers.clear()
            module._buffers.update(own)
        for tensor, copy in copies:
            _restore(tensor, copy)
        _warn_of_changes(model, versions, {id(weight) for weight, _ in rescaled})
        for weight, copy in rescaled:
            _restore(weight, copy)


def _warn_of_changes(model: nn.Module, versions: dict[str, int], restored: set[int]) -> None:
    """Warn of parameters that the model itself wrote to: we have no copy to restore them from."""
    for name, parameter in model.named_parameters():
        if parameter._version != versions.get(name) and id(parameter) not in restored:
            warn(
                f"the model changed its parameter {name!r} in place when it was run, and the "
                "change stays: run it with other settings, or copy the model first"
            )


def _restore(tensor: Tensor, copy: Tensor) -> None:
    """Write the copy back if something changed; writing would spoil graphs that use the tensor.

    The version counter does not show changes by batch norm or through `.data`.
    """
    if tensor.shape != copy.shape or tensor.dtype != copy.dtype:
        tensor.data = copy
    elif not torch.equal(tensor, copy):
        with torch.no_grad():
            tensor.copy_(copy)


@contextmanager
def _parameter_hooks_off(model: nn.Module) -> Iterator[None]:
    """Switch off the hooks on parameters: they change gradients in training, not the model."""
    hooks = [
        (parameter._backward_hooks, dict(parameter._backward_hooks))
        for parameter in model.parameters()
        if parameter._backward_hooks
    ]
    for active, _ in hooks:
        active.clear()
    try:
        yield
    finally:
        for active, saved in hooks:
            active.update(saved)


def _is_recurrent(model: nn.Module) -> bool:
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


def with_structure(
    model: nn.Module,
    batches: Iterable[Any],
    log_likelihood: LogLikelihood,
    random_state: AbstractContextManager[Any],
) -> tuple[nn.Module, Iterable[Any], LogLikelihood]:
    """Return model, batches and log-likelihood such that outputs and targets are tensors.

    They are returned as they are if they are tensors already.

    Args:
        model: the model, in eval mode.
        batches: the user's batches. The first decides.
        log_likelihood: the user's function of outputs and targets.
        random_state: entered around the run of the model.
    """
    if isinstance(batches, Tensor | Mapping | str):
        return model, batches, log_likelihood  # refused when it is read
    rest = iter(batches)
    first = list(_first_of(rest))
    batches = chain(first, rest)
    if not first or not _is_structured(model, first[0], random_state):
        return model, batches, log_likelihood
    return LogLikelihoodModel(model, log_likelihood), map(_as_inputs, batches), take_values


class LogLikelihoodModel(nn.Module):
    """A model whose outputs are the log-likelihoods of the samples; targets are its last input."""

    def __init__(self, model: nn.Module, log_likelihood: LogLikelihood) -> None:
        super().__init__()
        self.model = model
        self.log_likelihood = log_likelihood

    def forward(self, inputs: Any, targets: Any) -> Tensor:
        """Return log p(targets | inputs), one value per sample."""
        first = sample_tensors(inputs)[0]
        values = self.log_likelihood(_call(self.model, inputs), _lists(targets, first.device))
        size = len(first)
        if not isinstance(values, Tensor) or tuple(values.shape) != (size,):
            came = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(
                f"a callable likelihood must return one value per sample, shape ({size},); "
                f"it returned {came}"
            )
        return values


def _first_of(items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        yield item
        return


def _is_structured(model: nn.Module, item: Any, random_state: AbstractContextManager[Any]) -> bool:
    """Whether the targets of a batch, or the model's outputs for it, are no single tensor."""
    inputs, targets = _split(item)
    if targets is not None and not isinstance(targets, Tensor):
        return True
    if is_encoder_decoder(model) and isinstance(item, Mapping):
        inputs = item  # the inputs of its decoder are computed from the labels
    if not sample_tensors(inputs):
        return False  # refused when it is read
    with random_state, torch.no_grad():
        out = _call(model, _copied(inputs))
    has_logits = hasattr(out, "logits") or (isinstance(out, Mapping) and "logits" in out)
    return not isinstance(out, Tensor) and not has_logits


def _split(item: Any) -> tuple[Any, Any]:
    """Return the inputs and the targets of a batch; the labels stay in a mapping without others."""
    if isinstance(item, tuple | list) and len(item) == 2:
        return item[0], item[1]
    if isinstance(item, Mapping) and "labels" in item:
        return {key: value for key, value in item.items() if key != "labels"}, item["labels"]
    return (item[0] if isinstance(item, tuple | list) and len(item) == 1 else item), None


def _as_inputs(item: Any) -> tuple[Any]:
    """Return a batch whose inputs are those of `LogLikelihoodModel`."""
    inputs, targets = _split(item)
    tensors = sample_tensors(inputs)
    return ((inputs, _arrays(targets, len(tensors[0]) if tensors else 0)),)


def _call(model: nn.Module, inputs: Any) -> Any:
    """Call the model as it is called for batches of these forms."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def _arrays(targets: Any, size: int) -> Any:
    """Return the targets with arrays for lists of one item per sample: arrays are cut by samples.

    Other lists have one part for all samples in each place.
    """
    if isinstance(targets, Mapping):
        return {key: _arrays(value, size) for key, value in targets.items()}
    if not isinstance(targets, list) or not _is_per_sample(targets, size):
        return targets
    array = np.empty(size, dtype=object)
    for n, item in enumerate(targets):
        array[n] = item
    return array


def _is_per_sample(values: list[Any], size: int) -> bool:
    if len(values) != size:
        return False
    if any(isinstance(value, Mapping) for value in values):
        return True
    parts = all(isinstance(value, Tensor) and value.shape[:1] == (size,) for value in values)
    if parts:
        raise ValueError(
            f"targets are a list of {size} tensors with {size} rows each, in a batch of {size}: "
            "are they parts, or samples? Use a tuple or a mapping for parts, dicts for samples, "
            "or another batch size"
        )
    return True


def _lists(targets: Any, device: torch.device) -> Any:
    """Return the targets with lists for arrays, and copies of their tensors on a device."""

    def as_given(leaf: Any) -> Any:
        if isinstance(leaf, np.ndarray) and leaf.dtype == object:
            return _lists(leaf.tolist(), device)
        return leaf.to(device, copy=True) if isinstance(leaf, Tensor) else leaf

    return map_leaves(targets, as_given)


def _copied(value: Any) -> Any:
    """Return the value with copies of its tensors, which a model may write to."""
    return map_leaves(value, lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)


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
        self._writes_inputs = False

    def zeros(self, name: str) -> Tensor:
        """Return zeros like a parameter, in the dtype that its squares are summed in."""
        p = self.parameters[name]
        return torch.zeros(p.shape, dtype=at_least_float32(p.dtype), device=p.device)

    def outputs(self, batch: FisherBatch) -> Tensor:
        """Return the model's outputs for a batch; raise if they cannot be used."""
        return self.checked(batch, self._call(batch.map(Tensor.clone)))

    def probe(self, batch: FisherBatch) -> Probe:
        """Return the outputs for a batch with their graph, and which operations looked across it.

        Raises if the outputs cannot be used.
        """
        if batch.size == 1:  # a copy of it costs less than watching
            output, watch = self.outputs(batch), None
        else:
            output, watch = self._watched(batch)
            self.checked(batch, output)
        return Probe(output, self.graph(output), watch.looks if watch else [])

    def some(self, batch: FisherBatch, samples: list[int]) -> Probe | None:
        """Return the outputs for some samples; None if the model takes no batch of this size."""
        try:
            output = self._call(batch.pick(samples))  # which copies them
        except Exception:  # of the user's model, which may check its inputs in any way
            return None
        return Probe(output, self.graph(output), [])

    def alone(
        self, batch: FisherBatch, number: int, why: str, watch: Watch | None = None
    ) -> Tensor:
        """Return the output for one sample of a batch.

        Args:
            batch: the samples.
            number: the number of the sample.
            why: the reason why it is run alone, for the error if the model cannot.
            watch: is active while the model runs, if given.
        """
        sample = batch.take(number, number + 1).map(Tensor.clone)
        try:
            with watch or nullcontext():
                return self._call(sample)
        except Exception as error:
            raise ValueError(
                f"sample {number} of {batch.where} was run alone, {why}, and the model failed: "
                f"{_in_one_line(error)}. Let it take any number of samples: squeeze(-1) instead "
                "of squeeze(), a state that each forward makes anew, no fixed batch size. If the "
                "samples are parts of one whole, such as the nodes of a graph, give that whole as "
                "one sample"
            ) from error

    def _watched(self, batch: FisherBatch) -> tuple[Tensor, Watch]:
        """Run the model, from the start again with a copy if it would write to its inputs."""
        if not self._writes_inputs:
            try:
                with Watch(batch.tensors) as watch:
                    return self._call(_copy_unwatchable(batch)), watch
            except InputWritten:
                self._writes_inputs = True
        with Watch() as watch:
            return self._call(batch.map(Tensor.clone)), watch

    def _call(self, batch: FisherBatch) -> Tensor:
        return batch.outputs(self.model, one_output=self._one_output)

    def checked(self, batch: FisherBatch, output: Tensor) -> Tensor:
        """Return the outputs for a batch; raise if they cannot be used."""
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
                + (
                    "its adapter is merged into the base weights; call unmerge_adapter() first"
                    if any(
                        getattr(module, "merged_adapters", None) for module in self.model.modules()
                    )
                    else "is its forward under no_grad or detached?"
                )
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


def _copy_unwatchable(batch: FisherBatch) -> FisherBatch:
    """Return the batch with copies of its sparse and nested tensors, whose memory is not one."""

    def copied(tensor: Tensor) -> Tensor:
        return tensor if tensor.layout == torch.strided and not tensor.is_nested else tensor.clone()

    return batch.map(copied)


def _in_one_line(error: Exception) -> str:
    """Return the message of an error without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())
