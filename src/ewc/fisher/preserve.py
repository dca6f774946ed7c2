"""Running a model without changing it: modes, buffers, weights, hooks and random number states."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType

import torch
from torch import Tensor, nn

from ewc.warnings import warn


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
        found = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
        self.devices = sorted(device for device in found if device is not None)
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
        for module, found in buffers:
            module._buffers.clear()
            module._buffers.update(found)
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
        for active, found in hooks:
            active.update(found)


def _is_recurrent(model: nn.Module) -> bool:
    return any(isinstance(module, nn.RNNBase) for module in model.modules())
