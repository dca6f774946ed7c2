"""What every trainer does with a memory: attach it, restore it, consolidate at the end.

A consolidation that could only fail is found out before the first step: its options when the
callback is made, its batches when the trainer draws the first one, of which two samples are tried.
What fails at the end nevertheless is a warning, because the weights of a whole training are worth
more than the memory of it.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from itertools import chain, islice
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer

from ewc.diagnostics import warn
from ewc.distributed.ranks import find_ranks
from ewc.distributed.shards import refuse_deepspeed
from ewc.fisher.batches import as_batches, chosen_answers, has_pairs_of_answers, read_batches
from ewc.fisher.likelihood import MAX_EXACT_OUTPUTS, Kind, check_options
from ewc.fisher.model import preserved
from ewc.fisher.overlap import check_shaping
from ewc.memory import (
    EWC,
    check_fit,
    check_new_task,
    trained_parameters,
    try_consolidation,
)
from ewc.pull import Pull
from ewc.step_size import How

Consolidation: TypeAlias = bool | Mapping[str, Any]
DEFAULT_NAME = "ewc"
FEW = 2  # samples of the first batch that are tried, in each rank
TELLING = 32  # samples in a first batch; a smaller one may have new classes only by chance


class TrainerMemory:
    """A memory inside of a trainer.

    Args:
        memory: the memory, of the model that is trained or of a part of it; None if it is loaded
            when training begins.
        how: how it pulls, see `EWC.attach`; None is the memory's own default.
        consolidate: whether to consolidate at the end of training; or the options for it. Without
            a `kind`, it is chosen for the model, see `fitting_kind`.
        name: the name under which it is saved.
    """

    def __init__(
        self,
        memory: EWC | None,
        how: How | None,
        consolidate: Consolidation,
        name: str = DEFAULT_NAME,
    ) -> None:
        if not isinstance(memory, EWC | None):
            raise TypeError(f"expected an ewc.EWC as the memory, got {type(memory).__name__}")
        if not re.fullmatch(r"[\w .-]+", name):
            raise ValueError(
                "expected a name that can be part of a file's name, of letters, digits, spaces, "
                f"'.', '-' and '_', got {name!r}"
            )
        self.loaded, self.name = memory, name
        self._attach_options: dict[str, Any] = {} if how is None else {"how": how}
        self._options = _consolidation_options(consolidate)
        self._is_tried = False
        self._pulls: list[Pull] = []

    @property
    def memory(self) -> EWC:
        """The memory."""
        if self.loaded is None:
            raise RuntimeError("the memory of a directory is loaded when training begins: not yet")
        return self.loaded

    def values(self) -> dict[str, float]:
        """Return what a trainer logs of the memory, all ranks together; infinite values are none.

        With another name than the default, that is in the names.
        """
        memory, prefix = self.memory, "ewc" if self.name == DEFAULT_NAME else f"ewc_{self.name}"
        if not memory.tasks:
            return {}
        values = {
            "strength": memory.strength,
            "estimated_rise": memory.estimated_rise(),
            "allowed_rise": memory.allowed_rise(),
        }
        return {f"{prefix}_{key}": v for key, v in values.items() if math.isfinite(v)}

    def check_name(self, memories: Sequence["TrainerMemory"]) -> None:
        """Raise if one of a trainer's memories has the name of another; then none is attached.

        Args:
            memories: all memories of the trainer, this one among them.
        """
        if sum(memory.name == self.name for memory in memories) > 1:
            for memory in memories:
                memory.stop()
            raise ValueError(
                "expected a name of its own for each memory in a trainer, under which it is saved, "
                f"got {self.name!r} twice: give each a name with EWCCallback(memory, name=...)"
            )

    def start(self, optimizers: Iterable[Optimizer]) -> None:
        """Attach the memory to those optimizers that have parameters of it.

        Raises if there is none, if one of them cannot be pulled, if the memory does not fit the
        model, or if the task to consolidate at the end is there already; then it is attached to
        none. Warns if nothing will pull, now or later.
        """
        self.stop()  # a run that ended with an error is still attached
        self._is_tried = False
        if self._options is not None:
            check_new_task(self.memory, self._options.get("task"))
        optimizers = list(optimizers)
        for optimizer in optimizers:
            refuse_deepspeed(optimizer=optimizer)
        check_fit(self.memory)
        owners = self._owners(optimizers)
        try:
            for optimizer in owners:
                self._pulls.append(self.memory.attach(optimizer, **self._attach_options))
        except Exception:
            self.stop()
            raise
        if not self.memory.tasks and self._options is None:
            warn(
                "the memory has no task, so nothing pulls on the weights: this is plain training. "
                "Before it, call memory.consolidate(batches_of_the_old_task), or load a memory; "
                "to remember this training at its end, pass EWCCallback(memory, consolidate=True)"
            )

    @property
    def wants_a_batch(self) -> bool:
        """Whether the first batch of the training should be given to `try_out`."""
        return self._options is not None and not self._is_tried

    def try_out(self, batch: Any, loader: Any = None) -> None:
        """Raise, before the first step, if two samples of a batch cannot be consolidated.

        Neither the model nor the memory nor any random state is changed. All ranks of a group
        must call this, each with a batch of its own.

        Args:
            batch: a batch of the training.
            loader: the loader that it came from.
        """
        if self._options is None or self._is_tried:
            return
        self._is_tried = True
        options = {**self._options}
        for of_memory_alone in ("task", "floor", "normalize"):
            options.pop(of_memory_alone, None)
        try:
            ranks = find_ranks(self.memory.model, self.memory.process_group)
            with ranks.failing_together():
                if has_pairs_of_answers(loader):
                    batch = chosen_answers(batch)
                options["kind"] = self._choose_kind(batch)
            few = FEW * ranks.size
            options["max_samples"] = min(few, options.get("max_samples") or few)
            options["generator"] = _copy_of(options.get("generator"))
            try_consolidation(self.memory, [batch], options, at_least=TELLING)
        except Exception as error:
            self.stop()
            raise ValueError(
                "consolidate= would fail at the end of this training, as it does for the first "
                f"batch, so not a single step was taken. {type(error).__name__}: {error}. Pass "
                "other options, or leave out consolidate= and call memory.consolidate(batches, "
                "...) after training, with batches that fit"
            ) from error

    def give_up_trying(self) -> None:
        """Try nothing any more: the first step has been taken."""
        self._is_tried = True

    def stop(self) -> None:
        """Detach the memory."""
        for pull in self._pulls:
            pull.remove()
        self._pulls = []

    def finish(self, loader: Iterable[Any], as_trained: Callable[[Any], Any] | None = None) -> None:
        """Detach the memory, and consolidate if that was asked for; warn if it fails.

        Args:
            loader: the batches of the training.
            as_trained: what the trainer does with each of them before the model gets it.
        """
        self.stop()
        self._is_tried = True
        if self._options is None:
            return
        try:
            batches = as_batches(loader, None)
            if as_trained is not None:
                batches = map(as_trained, batches)
            if "kind" not in self._options:  # nothing was tried, as in a run that was resumed
                ranks = find_ranks(self.memory.model, self.memory.process_group)
                with ranks.failing_together():
                    rest = iter(batches)
                    first = list(islice(rest, 1))
                    self._choose_kind(*first)
                batches = chain(first, rest)
            self.memory.consolidate(batches, **self._options)
        except Exception as error:
            given = "".join(f", {name}={value!r}" for name, value in self._options.items())
            warn(
                "training is done and its weights are kept, but consolidating them failed: "
                f"{type(error).__name__}: {error}. The memory is as before, with the tasks "
                f"{list(self.memory.tasks)}. Save the model, and before its weights change call "
                f"memory.consolidate(batches{given})"
            )

    def _choose_kind(self, *batches: Any) -> Kind:
        """Return the kind of Fisher that was asked for, or that fits the model."""
        assert self._options is not None
        if "kind" not in self._options:
            likelihood = self._options.get("likelihood")
            self._options["kind"] = fitting_kind(self.memory.model, batches, likelihood)
        kind: Kind = self._options["kind"]
        return kind

    def check_resumed(self, why: str) -> None:
        """Complain that training is resumed, but the checkpoint's memory was not restored.

        Args:
            why: the reason, as the beginning of a sentence.
        """
        if not self.memory.tasks and self._options is None:
            raise RuntimeError(
                f"{why}, and the memory given has no task: nothing would pull on the weights. "
                "Consolidate or load the memory before training is resumed, or resume from a "
                "checkpoint that was saved with this callback"
            )
        warn(
            f"{why}: training is resumed with the memory as it was given, "
            f"with the tasks {list(self.memory.tasks)}"
        )

    def _owners(self, optimizers: list[Optimizer]) -> list[Optimizer]:
        """Return the optimizers that have parameters of the memory."""
        selected = {id(p) for p in trained_parameters(self.memory)}
        owners = [
            optimizer
            for optimizer in optimizers
            if any(id(p) in selected for group in optimizer.param_groups for p in group["params"])
        ]
        if not owners:
            raise ValueError(
                "expected the memory of the model that is trained, but the trainer's optimizer has "
                "none of its parameters: was the model made anew, or wrapped, after the memory?"
            )
        return owners


def fitting_kind(model: nn.Module, batches: Iterable[Any], likelihood: object = None) -> Kind:
    """Return a kind of Fisher that works for a model and all of its batches.

    It is `"exact"` for single outputs of at most 1,000 classes, `"sampled"` for more and for
    sequences, whose length may grow from batch to batch, and `"empirical"` for a likelihood that
    the user wrote. The model is run on two samples of the first batch.
    """
    if callable(likelihood):
        return "empirical"
    with preserved(model) as random_state, random_state, torch.no_grad():
        for batch in read_batches(batches, model):
            output = batch.take(0, min(FEW, batch.size)).outputs(model)
            few = output.ndim <= 2 and output[0].numel() <= MAX_EXACT_OUTPUTS
            return "exact" if few else "sampled"
    return "sampled"


def _copy_of(generator: torch.Generator | None) -> torch.Generator | None:
    if generator is None:
        return None
    return torch.Generator(generator.device).set_state(generator.get_state())


def _consolidation_options(consolidate: Consolidation) -> dict[str, Any] | None:
    """Return the options for `EWC.consolidate`, or None; raise for unknown ones."""
    if isinstance(consolidate, bool):
        return {} if consolidate else None
    if not isinstance(consolidate, Mapping):
        raise TypeError(
            "expected consolidate to be True, False or the options of memory.consolidate(), such "
            f"as {{'task': 'B'}}, got {consolidate!r}"
        )
    known = [name for name in signature(EWC.consolidate).parameters if name != "self"][1:]
    for name in consolidate:
        if name not in known:
            raise ValueError(
                f"expected options of memory.consolidate() ({', '.join(known)}), got {name!r}"
            )
    options = dict(consolidate)
    if options.get("collate") is not None:
        raise ValueError("the trainer's loader has a collator: leave out the option 'collate'")
    likelihood = options.get("likelihood", "categorical")
    kind = options.get("kind", "empirical" if callable(likelihood) else "exact")
    check_options(kind, likelihood, options.get("positions", "mean"))
    check_shaping(options.get("floor", 0.0), options.get("normalize"))
    samples = options.get("max_samples")
    if samples is not None and samples < 1:
        raise ValueError(f"max_samples must be at least 1, not {samples}")
    return options
