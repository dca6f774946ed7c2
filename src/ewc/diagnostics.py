"""The warnings of this package: training runs, but most likely not as intended."""

import math
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.hooks import RemovableHandle

from ewc.distributed.shards import any_nonzero, shard, sum_of_shards


class EWCWarning(UserWarning):
    """Training runs, but most likely not as intended.

    Example:
        >>> import warnings, torch, ewc
        >>> memory = ewc.EWC(torch.nn.Linear(2, 3), strength=1.0)
        >>> zero = {"weight": torch.zeros(3, 2), "bias": torch.zeros(3)}
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("error", ewc.EWCWarning)  # raise instead of warning
        ...     memory.consolidate(zero)
        Traceback (most recent call last):
            ...
        ewc.diagnostics.EWCWarning: the Fisher is zero for every weight: ...
    """


def warn(message: str) -> None:
    """Warn at the first line outside of this package and of torch, which calls our hooks."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and _root_package(frame) in ("ewc", "torch"):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, EWCWarning, stacklevel=level)


def warn_if_zero(fisher: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> None:
    """Warn if the Fisher is zero everywhere, or in a whole layer that nothing else protects.

    Args:
        fisher: the Fisher of the new task.
        held: the precision of the tasks before it.
    """
    used = {name: any_nonzero(tensor) for name, tensor in fisher.items()}
    if not any(used.values()):
        warn("the Fisher is zero for every weight: this task will not be protected at all")
        return
    protected: dict[str, bool] = {}
    for name in fisher:
        layer = name.rpartition(".")[0] or name
        now = used[name] or (name in held and any_nonzero(held[name]))
        protected[layer] = protected.get(layer, False) or now
    if unused := [layer for layer, is_protected in protected.items() if not is_protected]:
        layers = ", ".join(unused)
        warn(f"the Fisher is zero for all of {layers}: these layers will not be protected")


def two_sums(parameters: Mapping[str, Tensor]) -> dict[str, tuple[float, float]]:
    """Return Σ θ and Σ θ² per parameter, which show later, without a copy, whether it moved.

    Of a sharded parameter they are those of this rank's shard.
    """
    values = {name: shard(p.detach()).cpu().double() for name, p in parameters.items()}
    return {name: (float(x.sum()), float(x.square().sum())) for name, x in values.items()}


def warn_if_moved(
    before: Mapping[str, tuple[float, float]], parameters: Mapping[str, Tensor]
) -> None:
    """Warn if the parameters no longer have the `two_sums` that were taken before.

    Call it only if no pull acted on them in between.
    """
    now = two_sums({name: p for name, p in parameters.items() if name in before})
    if any(now[name] != before[name] for name in now):
        warn(
            "the weights moved since the last consolidate, but nothing pulled on them: "
            "call memory.attach(optimizer), or add memory.penalty() to the loss"
        )


def warn_of_unowned(names: Sequence[str]) -> None:
    """Warn of protected parameters that no attached optimizer moves: nothing pulls on them."""
    shown = ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" * (len(names) > 5))
    warn(
        f"the memory protects {shown}, but no optimizer that it is attached to has these "
        "parameters, so nothing pulls on them: they were replaced, or belong to another "
        "optimizer. Attach an optimizer that has them, or set requires_grad=False on them if "
        "they are not to be trained"
    )


def warn_of_divergence(name: str, product: float, limit: float) -> None:
    """Warn of a pull through the gradient that is not stable."""
    warn(
        f"how='gradient' will diverge: lr · strength · precision is {product:.3g} in {name!r} "
        f"and must stay below {limit:.3g} for this optimizer; "
        "use how='proximal', which is stable for every strength, or a smaller strength (a larger "
        "budget)"
    )


def warn_of_centered(name: str) -> None:
    """Warn of centered RMSprop where gradients have hardly any noise."""
    warn(
        f"the gradients of {name!r} hardly vary from step to step, and RMSprop(centered=True) "
        "divides by how much they vary: its steps grow without bound where a pull balances the "
        "gradient; use centered=False, or how='gradient'"
    )


def warn_of_growth(factor: float, steps: int) -> None:
    """Warn of a pull through the gradient that runs away, seen from outside."""
    warn(
        f"how='gradient' diverges: the penalty grew {factor:.1e} times within {steps} steps; use a "
        "smaller strength (a larger budget) or a smaller learning rate, or how='proximal', which "
        "is stable for every strength, with an optimizer that it knows"
    )


def warn_of_rounding(name: str, parameter: Tensor) -> None:
    """Warn of a pull on weights that are too coarse for it."""
    dtype = str(parameter.dtype).removeprefix("torch.")
    warn(
        f"{name!r} is kept in {dtype}: how='proximal' changes it after the optimizer's step, and "
        "changes below its rounding are lost, so the pull is too weak at small learning rates; "
        "keep the parameters in float32 and compute under autocast, or use how='gradient'"
    )


def warn_of_runaway() -> None:
    """Warn of a budget whose strength has grown until nothing was finite any more."""
    warn(
        "the estimated rise is not finite: the weights diverged. With how='gradient' or penalty() "
        "a budget can cause that, because it raises the strength beyond what an explicit penalty "
        "is stable for; use memory.attach(optimizer)"
    )


def warn_of_smallest_budget(budget: float, smallest: float) -> None:
    """Warn of a budget within which the weights can hardly be told from their anchors."""
    warn(
        f"a budget of {budget:.3g} is less than the rounding of the weights amounts to: they will "
        "swing around it, or stand still; the smallest budget that can be kept is about "
        f"{smallest:.2g}"
    )


def warn_of_standstill(share: float, strength: float) -> None:
    """Warn of a pull that lets hardly any weight move."""
    warn(
        f"the pull undoes {1 - share:.1%} of the optimizer's step: with strength {strength:g} "
        "nearly all weights stand still and little new will be learned; try a smaller strength "
        "(a larger budget)"
    )


def _root_package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


Statistics = Literal["hold", "free"]


def check_statistics(statistics: str) -> None:
    """Raise for an unknown option."""
    if statistics not in get_args(Statistics):
        raise ValueError(f"expected statistics='hold' or 'free', got {statistics!r}")


def norms_with_statistics(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield, by name, the norms that have running statistics."""
    for name, module in model.named_modules():
        if isinstance(module, _NormBase) and module.running_mean is not None:
            yield name, module


def is_in_protected_layer(model: nn.Module, name: str, is_protected: Callable[[str], bool]) -> bool:
    """Whether a module has protected parameters; for one without any, whether its parent has.

    Frozen parameters need no protection, but what they compute is to stay as it is too.
    """
    while True:
        prefix = f"{name}." if name else ""
        parameters = list(model.get_submodule(name).named_parameters())
        if parameters or not name:
            return any(not p.requires_grad or is_protected(prefix + own) for own, p in parameters)
        name = name.rpartition(".")[0]


class HeldStatistics:
    """Norms that normalize with their running statistics, in training mode too.

    They are held by hooks on their `forward`, so that `model.train()` does not let them go. A copy
    of the model and of this object holds the copied norms. When this object is gone, with the
    memory that it belongs to, the statistics follow the training again.
    """

    def __init__(self) -> None:
        self._held: list[tuple[nn.Module, _EvalMode]] = []

    def hold(self, model: nn.Module, is_protected: Callable[[str], bool]) -> None:
        """Hold the norms of protected layers, and no others."""
        norms = [
            module
            for name, module in norms_with_statistics(model)
            if is_in_protected_layer(model, name, is_protected)
        ]
        for module, mode in self._held:
            if not any(module is norm for norm in norms):
                mode.end()
        self._held = [pair for pair in self._held if any(pair[0] is norm for norm in norms)]
        held = [module for module, _ in self._held]
        for norm in norms:
            if not any(norm is module for module in held):
                self._held.append((norm, _EvalMode(norm)))

    def release(self) -> None:
        """Let all statistics follow the training again."""
        for _, mode in self._held:
            mode.end()
        self._held = []

    def __del__(self) -> None:
        if hasattr(self, "_held"):  # not if copying it failed half-way
            self.release()


class _EvalMode:
    """Runs one module in eval mode, and puts its mode back afterwards."""

    def __init__(self, module: nn.Module) -> None:
        self._training: list[bool] = []
        self._ended = False
        self._handles: list[RemovableHandle] = [
            module.register_forward_pre_hook(self.enter),
            # First, so that modes are put back in reverse order where several memories hold a norm.
            module.register_forward_hook(self.leave, prepend=True, always_call=True),
        ]

    def end(self) -> None:
        """Run the module in its own mode again."""
        self._ended = True  # where the garbage collector calls this, handles may do nothing
        for handle in self._handles:
            handle.remove()

    def enter(self, module: nn.Module, args: Any) -> None:
        if self._ended:
            return
        self._training.append(module.training)
        module.training = False

    def leave(self, module: nn.Module, args: Any, output: Tensor) -> None:
        if self._training:
            module.training = self._training.pop()


SAME = 0.5  # cosine of a layer and its anchor: new weights have about 0, moved ones about 1
MOST_LABELS = 10_000  # more are not classes but, for example, words


class BufferCheck:
    """Notices buffers that moved since the last consolidation, and warns once.

    Reading them takes time, so during training they are read after 1, 2, 4, 8, … steps only.
    """

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] | None = {}  # None until the next step
        self._steps = 0
        self._next = 1
        self._warned = False

    def remember(self, model: nn.Module) -> None:
        """Take the present buffers as those that the tasks were solved with."""
        self._before, self._steps, self._next = two_sums(_state_buffers(model)), 0, 1

    def remember_at_next_step(self) -> None:
        """Take the buffers at the next step: a memory may be loaded before its model is."""
        self._before, self._steps, self._next = None, 0, 1

    def count_step(self, model: nn.Module, is_protected: Callable[[str], bool]) -> None:
        """Count a training step, and check after some of them."""
        if self._before is None:
            self.remember(model)
        self._steps += 1
        if self._steps >= self._next:
            self._next *= 2
            self.check(model, is_protected)

    def check(self, model: nn.Module, is_protected: Callable[[str], bool]) -> None:
        """Warn if buffers of protected layers moved."""
        if not self._before or self._warned:
            return
        now = two_sums({n: b for n, b in _state_buffers(model).items() if n in self._before})
        moved = [
            name
            for name, values in now.items()
            if values != self._before[name]
            and is_in_protected_layer(model, name.rpartition(".")[0], is_protected)
        ]
        if moved:
            self._warned = True
            _warn_of_buffers(moved, {name for name, _ in norms_with_statistics(model)})


def _warn_of_buffers(moved: list[str], norms: set[str]) -> None:
    """Warn of buffers that changed since a task was remembered."""
    shown = ", ".join(map(repr, moved[:3])) + (f" and {len(moved) - 3} more" * (len(moved) > 3))
    own = "keep a copy of them per task and put it back when the task is used"
    statistics = any(name.rpartition(".")[0] in norms for name in moved)
    held = "hold them with EWC(model, statistics='hold')" if statistics else "freeze them"
    warn(
        f"the buffers {shown} moved since the last task was remembered. No penalty holds buffers: "
        f"outputs that depend on them change, and the task may be forgotten; {held}, or {own}"
    )


class ReplacementCheck:
    """Notices parameters that are other objects than those consolidated, with other weights."""

    def __init__(self) -> None:
        self._known: dict[str, weakref.ref[Tensor]] = {}

    def remember(self, parameters: Mapping[str, Tensor]) -> None:
        """Take these parameters as the ones that were consolidated."""
        self._known |= {name: weakref.ref(tensor) for name, tensor in parameters.items()}

    def check(
        self,
        parameters: Mapping[str, Tensor],
        anchor: Mapping[str, Tensor],
        precision: Callable[[], Mapping[str, Tensor]],
    ) -> None:
        """Warn of layers that were replaced; one that only grew keeps its old weights.

        Args:
            parameters: the parameters of the model, by name; not those that are computed.
            anchor: where the well pulls them to.
            precision: returns that of the well; it is called only if a parameter is another one.
        """
        known = self._known
        changed = [
            name
            for name in anchor
            if name in parameters
            if name not in known or known[name]() is not parameters[name]
        ]
        if not changed:
            return
        layers: dict[str, list[str]] = {}
        for name in changed:
            if name in known:
                layers.setdefault(name.rpartition(".")[0], []).append(name)
        self.remember({name: parameters[name] for name in changed})
        held = precision() if layers else {}
        replaced = [
            names
            for names in layers.values()
            if not _near_anchor([(parameters[n], held[n], anchor[n]) for n in names])
        ]
        if replaced:
            _warn_of_replaced([name for names in replaced for name in names])

    def __getstate__(self) -> dict[str, Any]:
        return {}  # a copy of the memory belongs to a copy of the model, with other parameters

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._known = {}


def _near_anchor(layer: list[tuple[Tensor, Tensor, Tensor]]) -> bool:
    """Whether parameters have about the weights of their anchors, where these have a precision.

    A head that grew has them in its leading block; the precision of the rest is 0.
    """
    dot, new_square, old_square = 0.0, 0.0, 0.0
    for parameter, precision, anchor in layer:
        held = shard(precision) > 0
        new = shard(parameter.detach())[held].double()
        old = shard(anchor)[held].double()
        dot += float(new @ old)
        new_square, old_square = new_square + float(new @ new), old_square + float(old @ old)
    if new_square == 0 or old_square == 0:
        return new_square == old_square
    return dot > SAME * math.sqrt(new_square * old_square)


def _warn_of_replaced(names: list[str]) -> None:
    shown = ", ".join(map(repr, names[:4])) + (f" and {len(names) - 4} more" * (len(names) > 4))
    head = names[0].rpartition(".")[0] or names[0]
    warn(
        f"{shown} are new parameters with other weights than those that were consolidated: the "
        "memory pulls them to the old weights, and the new task is hardly learned. For a head of "
        f"each task's own, leave it out with EWC(model, parameters='!{head}.*'), or keep the old "
        "one under its name and give the new one another; for a head that grows, copy the old "
        "weights into its leading rows"
    )


class LabelCheck:
    """Notices a task whose labels are all new, at a head that all tasks share.

    Attributes:
        known: the labels of the tasks so far.
        new: those of the present task, as far as they were read.
    """

    def __init__(self) -> None:
        self.known: set[int] = set()
        self.new: set[int] = set()
        self._told = False  # of the present task, by its first batch

    def watch(self, batches: Iterable[Any], at_least: int = 1) -> Iterable[Any]:
        """Return the same batches, and note their labels as they are read.

        Args:
            batches: the batches of a task.
            at_least: ignore the labels of batches with fewer samples.
        """
        self.new = set()
        if isinstance(batches, Tensor | Mapping | str) or not isinstance(batches, Iterable):
            return batches  # refused where they are read
        return self._watched(batches, at_least)

    def _watched(self, batches: Iterable[Any], at_least: int) -> Iterator[Any]:
        for batch in batches:
            if len(self.new) <= MOST_LABELS:
                self.new |= _class_labels(batch, at_least)
            yield batch

    def check(self, fisher: Mapping[str, Tensor], precision: Mapping[str, Tensor]) -> None:
        """Warn if the labels of this task are new, and no weights are used for it alone.

        Args:
            fisher: that of the new task.
            precision: that of the tasks before it.
        """
        if self._all_new() and precision and not self._told:
            used = [name for name, tensor in fisher.items() if any_nonzero(tensor)]
            # All of them, because ranks that share a parameter have to ask together.
            shared = [
                name in precision and _share_rows(fisher[name], precision[name]) for name in used
            ]
            if all(shared):
                self._told = True
                _warn_of_new_classes(self.new, self.known)

    def _all_new(self) -> bool:
        """Whether there are labels, and none of them is known from a task before."""
        return bool(self.new and self.known and self.new.isdisjoint(self.known))

    def remember(self) -> None:
        """Take the labels of the new task as known."""
        if len(self.known | self.new) <= MOST_LABELS:
            self.known |= self.new
        self.new, self._told = set(), False


def _warn_of_new_classes(new: set[int], known: set[int]) -> None:
    """Warn of class-incremental learning, which no penalty on weights can do."""
    warn(
        f"all labels of this task ({_shown(new)}) are new, those before were {_shown(known)}, and "
        "all tasks share one head. This is class-incremental learning, at which elastic weight "
        "consolidation fails: no sample ever taught the head to tell the new classes from the old "
        "ones. Give each task a head of its own, or train with some samples of the old classes too"
    )


def _class_labels(batch: Any, at_least: int) -> set[int]:
    """Return the class labels in a batch of enough samples that has one per sample."""
    labels = None
    if isinstance(batch, Mapping):
        labels = batch.get("labels")
    elif isinstance(batch, tuple | list) and len(batch) == 2:
        inputs, labels = batch
        labels = inputs.get("labels", labels) if isinstance(inputs, Mapping) else labels
    if not isinstance(labels, Tensor) or labels.ndim != 1 or labels.dtype not in _INTEGERS:
        return set()
    return set(labels.unique().tolist()) - {-100} if len(labels) >= at_least else set()


_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _share_rows(fisher: Tensor, precision: Tensor) -> bool:
    """Whether some row matters both now and before. Rows of outputs that were masked do not."""
    if fisher.shape != precision.shape:
        return True  # a head that grew: its old rows take part in every softmax
    now, before = (shard(tensor) != 0 for tensor in (fisher, precision))
    if fisher.ndim > 1:
        now, before = now.flatten(1).any(1), before.flatten(1).any(1)
    return bool(sum_of_shards((now & before).count_nonzero(), fisher))


def _shown(labels: set[int]) -> str:
    first = ", ".join(map(str, sorted(labels)[:5]))
    return first + (", …" if len(labels) > 5 else "")


def _state_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the floating-point buffers that are part of the model's state.

    Others, such as the tables of a position encoding, are computed again when they are needed.
    """
    buffers = {}
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and name not in module._non_persistent_buffers_set:
                buffers[f"{prefix}.{name}" if prefix else name] = buffer
    return {name: b for name, b in buffers.items() if b.numel() and not b.is_meta}


class DoublePullCheck:
    """Notices that a penalty was in the loss of a step at which the memory is attached too."""

    def __init__(self) -> None:
        self._in_loss = False
        self._warned = False

    def note(self) -> None:
        """Note that a gradient flows through a penalty."""
        self._in_loss = True

    def check(self) -> None:
        """Warn, at a step of an attached optimizer, if the penalty was in its loss."""
        if self._in_loss and not self._warned:
            self._warned = True
            warn(
                "the memory is attached to this optimizer, and its penalty() is in the loss too: "
                "it pulls twice. Leave one of them out"
            )
        self._in_loss = False
