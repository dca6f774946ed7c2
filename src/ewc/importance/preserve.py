"""Leave a model as it was found: modes, buffers, weights and the random numbers of the world."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn


@contextmanager
def left_as_found(model: nn.Module) -> Iterator[None]:
    """Run in eval mode with gradients on and compiled parts eager; afterwards all is as before,
    also after an error.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer._version, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    # an embedding with max_norm rescales its rows when they are looked up
    rescaled = [
        (module.weight, module.weight.detach().clone())
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None
    ]
    devices = {
        parameter.device.index
        for parameter in model.parameters()
        if parameter.device.type == "cuda"
    }
    with ExitStack() as stack:
        stack.enter_context(
            torch.random.fork_rng(devices=sorted(d for d in devices if d is not None))
        )
        stack.enter_context(torch.enable_grad())
        # cuDNN has no backward for recurrent layers in eval mode
        stack.enter_context(
            torch.backends.cudnn.flags(
                enabled=torch.backends.cudnn.enabled and not _recurrent(model)
            )
        )
        if _compiled(model):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            model.eval()
            yield
        finally:
            for module, training in modes:
                module.training = training
            for module, name, buffer, version, copy in buffers:
                module._buffers[name] = buffer
                if buffer._version != version:
                    with torch.no_grad():
                        buffer.copy_(copy)
            for weight, copy in rescaled:
                with torch.no_grad():
                    weight.copy_(copy)


def _recurrent(model: nn.Module) -> bool:
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


def _compiled(model: nn.Module) -> bool:
    """Compiled code hides the graph; the same model in eager mode computes the same function."""
    return any(
        hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )
