"""The memory: all tasks learned so far, as one quadratic well that pulls on the weights.

    penalty(θ) = (strength / 2) Σ_t Σ_i F_ti (θ_i − θ*_ti)²

with F_t the Fisher diagonal of task t and θ*_t the weights that solved it (the paper's equation 3).
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from ewc.curvature.kronecker import Layer, check_factors, layers_of
from ewc.curvature.tasks import PullState, TaskWells
from ewc.curvature.wells import Center, check_precision, energy, uniform_precision, well_at
from ewc.diagnostics import (
    BufferCheck,
    DoublePullCheck,
    HeldStatistics,
    LabelCheck,
    ReplacementCheck,
    Statistics,
    check_statistics,
    two_sums,
    warn_if_moved,
    warn_if_zero,
)
from ewc.distributed.ranks import ProcessGroup, choose_ranks, find_ranks
from ewc.distributed.shards import is_sharded
from ewc.fisher import KroneckerFisher, fisher_diagonal, fisher_kronecker
from ewc.fisher.batches import Collate, as_batches
from ewc.fisher.likelihood import Kind, Likelihood, Positions
from ewc.fisher.overlap import check_shaping, shaped
from ewc.parameters import (
    ModelParameters,
    ParameterSelection,
    at_least_float32,
    named_parameters,
)
from ewc.pull.hooks import Attachments, Pull
from ewc.pull.kronecker import HeldForces, SettleInEval
from ewc.step_size import How
from ewc.storage import (
    FILE,
    Fingerprint,
    PrecisionType,
    Rename,
    StoredTensors,
    automatic_card,
    curvature_of,
    fingerprint_in,
    fingerprint_of,
    keeps_tasks,
    load_state,
    of_same_weights,
    pack,
    read_card,
    read_config,
    read_tensors,
    refusal,
    save_state,
    saved_shapes,
    unpack,
    write_description,
)
from ewc.strength import Budget, FixedStrength, MemoryStrength


def ready_fisher(
    fisher: Mapping[str, Tensor], options: Mapping[str, Any], parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Check a Fisher that the user gave, and return it on the device of the parameters.

    Args:
        fisher: one tensor per parameter, by name.
        options: the user's options for `fisher_diagonal`; only the defaults are accepted.
        parameters: the selected parameters of the model.
    """
    if not fisher.keys() & parameters.keys():
        raise ValueError(
            "expected a list of batches, or a Fisher keyed by parameter names (such as "
            f"{next(iter(parameters))!r}); got a mapping with the keys {list(fisher)[:3]}"
        )
    check_defaults(options)
    for name, tensor in fisher.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"expected a tensor as the Fisher of {name!r}, got {tensor!r}")
    check_precision(fisher, parameters, what="Fisher")
    return {
        name: fisher[name].detach().to(p.device, at_least_float32(p.dtype))
        for name, p in parameters.items()
    }


def check_defaults(options: Mapping[str, Any]) -> None:
    """Raise if there is an option for `fisher_diagonal` beside a ready Fisher."""
    for name, value in options.items():
        if value != signature(fisher_diagonal).parameters[name].default:
            raise ValueError(f"{name}={value!r} has no effect on a ready Fisher: leave it out")


def diagonals_of(fisher: Mapping[str, Tensor] | KroneckerFisher) -> Mapping[str, Tensor]:
    """Return the diagonal of a Fisher by name, with factors or without."""
    return fisher.diagonals() if isinstance(fisher, KroneckerFisher) else fisher


Curvature = Literal["diagonal", "kronecker"]


def _choose_center(curvature: str, center: str | None) -> Center:
    """Return where the tasks are remembered; raise if that does not go with the curvature."""
    if curvature not in get_args(Curvature):
        raise ValueError(f"expected curvature='diagonal' or 'kronecker', got {curvature!r}")
    if center is None:
        return "latest" if curvature == "kronecker" else "each"
    if center not in get_args(Center):
        raise ValueError(f"expected center='latest' or 'each', got {center!r}")
    if curvature == "kronecker" and center == "each":
        raise ValueError(
            "curvature='kronecker' has one center for all tasks, because a sum of wells around "
            "different weights is no Kronecker product: leave center out, or use 'latest'"
        )
    return "latest" if center == "latest" else "each"


class EWC:
    """Elastic weight consolidation: the model learns new tasks without forgetting the old ones.

    Each task is remembered as a quadratic well around the weights that solved it. The cost per step
    does not grow with the number of tasks.

    `copy.deepcopy((model, optimizer, memory))` gives copies that belong together in the same way. A
    memory that is copied alone brings its own copy of the model.

    Args:
        model: the model to protect.
        strength: λ of the paper: how much the old tasks count. It may be changed at any time.
        budget: in place of a strength, how much the loss of the old tasks may rise, in nats per
            sample, by the memory's own estimate: see `estimated_rise`. The strength adapts to it
            while you train. "auto", the default, takes its scale from the memory: `allowed_rise`.
        decay: γ of online EWC (Schwarz et al. 2018). If it is below 1, each consolidation
            multiplies the precision so far by it and anchors everything at the current weights.
        curvature: `"diagonal"` has one precision per weight, as in the paper. `"kronecker"` has two
            small matrices per layer, which see that weights matter together: with many tasks it
            forgets far less. See `fisher_kronecker` for which layers; others have their diagonal.
        center: where the tasks are remembered. `"each"`: each around its own weights, as the
            separate penalties of the paper. `"latest"`: all around the weights after the last task,
            with the sum of their precisions, as Bayes' rule gives (Huszár 2018). By default
            `"each"`, and `"latest"` with `curvature="kronecker"`, which has no other.
        parameters: which parameters to protect, by name (`"!head.*"` leaves a head out). An object
            that reads the weights from the model in another way, a `ModelParameters`, is used as it
            is.
        keep_tasks: also keep each task's own well, which `without`, `forget` and consolidating a
            task again need. A device, such as `"cpu"`, says where.
        statistics: the running statistics of batch norms in protected layers. `"hold"` keeps them
            as they are once a task is remembered: the norms use them in training mode too.
            `"free"` lets them follow the training, and warns when they moved.
        process_group: the ranks that share the model, see `fisher_diagonal`.

    Example:
        >>> import torch, ewc
        >>> model = torch.nn.Linear(4, 3)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> memory = ewc.EWC(model, strength=100.0)
        >>> handle = memory.attach(optimizer)  # train task A as usual, then:
        >>> fisher = memory.consolidate([torch.randn(8, 4)], task="A")
        >>> memory  # and train task B: each step is pulled back towards the weights of A
        EWC(strength=100.0, decay=1.0, tasks=['A'])
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        strength: float | None = None,
        budget: float | Literal["auto"] | None = None,
        decay: float = 1.0,
        curvature: Curvature = "diagonal",
        center: Center | None = None,
        parameters: ParameterSelection | ModelParameters = None,
        keep_tasks: bool | str | torch.device = False,
        statistics: Statistics = "hold",
        process_group: ProcessGroup = None,
    ) -> None:
        check_statistics(statistics)
        center = _choose_center(curvature, center)
        self._strength = MemoryStrength(strength, budget)
        if not 0 <= decay <= 1:
            raise ValueError(f"expected 0 <= decay <= 1, got {decay}")
        storage = None if isinstance(keep_tasks, bool) else torch.device(keep_tasks)
        self._wells = TaskWells(float(decay), keep_tasks is not False, center, storage)
        self._curvature: Curvature = curvature
        if not isinstance(parameters, ModelParameters):
            parameters = ModelParameters(model, parameters)
        self._parameters = parameters
        self._ranks = choose_ranks(model, process_group)
        self._attachments = Attachments()
        self._warned: set[str] = set()  # the warnings of its pulls, each of which is given once
        # `two_sums` of the weights at the last consolidation, until something pulls on them.
        self._sums_before_pull: dict[str, tuple[float, float]] | None = None
        self._consolidated_at: Fingerprint | None = None  # the weights of the last consolidation
        self._statistics: Statistics = statistics
        self._held = HeldStatistics()
        self._buffer_check = BufferCheck()
        self._replacement_check = ReplacementCheck()
        self._label_check = LabelCheck()
        self._double_pull_check = DoublePullCheck()
        self._forces = HeldForces()
        self._settle_hook: RemovableHandle | None = None
        self._parameters.selected()  # raises if there is none
        if curvature == "kronecker" and any(map(is_sharded, self._parameters.all().values())):
            raise TypeError(
                "curvature='kronecker' of a model that fully_shard has sharded is not supported: "
                "use curvature='diagonal', or DistributedDataParallel"
            )

    @property
    def model(self) -> nn.Module:
        """The model that is protected, without the wrappers around it."""
        return self._parameters.model

    @property
    def process_group(self) -> ProcessGroup:
        """The ranks that share the model, as they were given or found; None if there are none."""
        return self._ranks.group

    @property
    def strength(self) -> float:
        """λ: how much the old tasks count compared with the new one; the present one of a budget.

        Setting it ends a budget.
        """
        return self._strength.control.strength

    @strength.setter
    def strength(self, strength: float | str) -> None:
        self._strength.fix(strength)

    @property
    def budget(self) -> float | Literal["auto"] | None:
        """How much the loss of the remembered tasks may rise; None with a fixed strength.

        Setting it lets the strength follow from now on. See `allowed_rise` for "auto".
        """
        return self._strength.budget

    @budget.setter
    def budget(self, budget: float | str) -> None:
        self._strength.limit(budget)

    def estimated_rise(self) -> float:
        """Return how much the loss of the remembered tasks has risen, by the memory's estimate.

        It is ½ Σ F (θ − θ*)² of each task, the mean over the tasks, above its smallest possible
        value: 0 for a single task, more for several that cannot all have their best weights. It is
        in nats per sample if F is a Fisher. With `decay` below 1 older tasks count less.

        Example:
            >>> import torch, ewc
            >>> model = torch.nn.Linear(4, 3)
            >>> memory = ewc.EWC(model, budget=0.05)
            >>> memory.anchor(1.0)
            >>> with torch.no_grad():
            ...     _ = model.bias.add_(0.1)  # 3 weights, of precision 1
            >>> round(memory.estimated_rise(), 6)
            0.015
        """
        return self._strength.estimated_rise(self._pull_state(), self._wells.weight)

    def allowed_rise(self) -> float:
        """Return how much `estimated_rise` may become: the budget, infinite with a fixed strength.

        With budget="auto" it is ½ Σ F (0.04 θ*)², the mean over the tasks: the weights may move by
        4 % of their size, as far as they matter; 3 % with `curvature="kronecker"`.

        Example:
            >>> import torch, ewc
            >>> model = torch.nn.Linear(4, 3)
            >>> memory = ewc.EWC(model)
            >>> with torch.no_grad():
            ...     _ = model.bias.fill_(2.0), model.weight.fill_(0.0)
            >>> memory.anchor(1.0)  # ½ Σ F θ*² = 6
            >>> round(memory.allowed_rise(), 6)
            0.0096
        """
        return self._strength.allowed_rise(self._pull_state, self._wells.weight)

    @property
    def decay(self) -> float:
        """γ of online EWC; 1 means that every task counts the same forever."""
        return self._wells.decay

    @property
    def curvature(self) -> Curvature:
        """Whether a task leaves one precision per weight, or Kronecker factors per layer."""
        return self._curvature

    @property
    def center(self) -> Center:
        """Whether tasks are remembered around their own weights or around the last ones."""
        return self._wells.center

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks, in the order of their consolidation."""
        return self._wells.tasks

    def __repr__(self) -> str:
        how = f"strength={self.strength}" if self.budget is None else f"budget={self.budget!r}"
        curvature = "" if self.curvature == "diagonal" else f", curvature={self.curvature!r}"
        return (
            f"{type(self).__name__}({how}, decay={self.decay}{curvature}, tasks={list(self.tasks)})"
        )

    def consolidate(
        self,
        batches: Iterable[Any] | Mapping[str, Tensor] | KroneckerFisher,
        *,
        task: str | None = None,
        kind: Kind = "exact",
        likelihood: Likelihood = "categorical",
        positions: Positions = "mean",
        max_samples: int | None = None,
        generator: torch.Generator | None = None,
        collate: Collate | None = None,
        floor: float = 0.0,
        normalize: float | None = None,
    ) -> dict[str, Tensor] | KroneckerFisher:
        """Remember the current weights as the solution of a task. If it fails, nothing changes.

        Args:
            batches: data of the task, as for `fisher_diagonal`; or a ready Fisher, a mapping of
                parameter names to tensors or a `KroneckerFisher`, for which `kind` to `collate`
                must be left out.
            task: the name of the task. By default tasks are numbered.
            kind: which Fisher, see `fisher_diagonal`.
            likelihood: what the outputs mean, see `fisher_diagonal`.
            positions: the scale for sequences, see `fisher_diagonal`.
            max_samples: use only this many samples.
            generator: the source of random labels for `kind="sampled"`.
            collate: makes batches if `batches` is a dataset, see `fisher_diagonal`.
            floor: fraction of each parameter's mean Fisher that is added to all of its entries.
            normalize: the trace that the Fisher is scaled to after that.

        Returns:
            The Fisher: one tensor per parameter, as it was stored, or with
            `curvature="kronecker"` a `KroneckerFisher`, which shows what has factors.

        Example:
            >>> import torch, ewc
            >>> memory = ewc.EWC(torch.nn.Linear(4, 3), strength=100.0)
            >>> batches = [(torch.randn(8, 4), torch.randint(3, (8,)))]
            >>> fisher = memory.consolidate(batches, task="A", kind="empirical")
            >>> _ = memory.consolidate(fisher, task="B")  # a ready Fisher
        """
        task = self._wells.new_name(task)
        check_shaping(floor, normalize)
        selected = self._parameters.selected()
        options: dict[str, Any] = {"kind": kind, "likelihood": likelihood, "positions": positions}
        options |= {"max_samples": max_samples, "generator": generator, "collate": collate}
        fisher: dict[str, Tensor] | KroneckerFisher | None = None
        if isinstance(batches, KroneckerFisher):
            fisher = self._ready_factors(batches, options, selected)
        elif isinstance(batches, Mapping):
            fisher = ready_fisher(batches, options, selected)
        self.settle()
        if self._sums_before_pull is not None:
            warn_if_moved(self._sums_before_pull, self._parameters.all())
        self._buffer_check.check(self._parameters.model, self._is_protected)
        is_ready = fisher is not None
        if fisher is None:
            data: Any = batches
            fisher = self._fisher(as_batches(data, options.pop("collate")), options)
        every = diagonals_of(fisher)
        if isinstance(fisher, KroneckerFisher):
            layers, diagonal = self._layers_of(fisher, floor, normalize)
        else:
            layers, diagonal = {}, shaped(fisher, floor=floor, normalize=normalize)
        warn_if_zero(every, self._wells.total.diagonals() if self.decay > 0 else {})
        if not is_ready:
            self._check_labels(every)
        self._remember(task, diagonal, layers, selected)
        return fisher if isinstance(fisher, KroneckerFisher) else diagonal

    def anchor(
        self,
        precision: float | Mapping[str, Tensor],
        *,
        task: str | None = None,
        floor: float = 0.0,
        normalize: float | None = None,
    ) -> None:
        """Remember the current weights with a given precision: `consolidate` of a ready Fisher.

        Args:
            precision: one tensor per parameter, by name. A number is the precision of all weights,
                which gives the L2 baseline of the paper.
            task: the name of the task, see `consolidate`.
            floor: see `consolidate`.
            normalize: see `consolidate`.

        Example:
            >>> import torch, ewc
            >>> memory = ewc.EWC(torch.nn.Linear(4, 3), strength=100.0)
            >>> memory.anchor(1.0, task="L2")
        """
        if not isinstance(precision, Mapping):
            precision = uniform_precision(self._parameters.selected(), precision)
        self.consolidate(precision, task=task, floor=floor, normalize=normalize)

    def penalty(self) -> Tensor:
        """Return (strength / 2) Σ_t Σ_i F_ti (θ_i − θ*_ti)², to add to a loss instead of `attach`.

        The call changes nothing. With a budget, λ is that of the coming step. It becomes the
        strength of the memory when a gradient flows through the penalty, once for the same weights:
        a loss may have the penalty twice, or be the sum of several backward passes.

        Example:
            >>> import torch, ewc
            >>> model = torch.nn.Linear(4, 3)
            >>> memory = ewc.EWC(model, strength=100.0)
            >>> memory.anchor(1.0)
            >>> loss = model(torch.randn(8, 4)).square().mean() + memory.penalty()
        """
        state = self._pull_state()
        if not torch.is_grad_enabled():  # it is only displayed
            return state.penalty()
        energy_now = energy(state.well, state.parameters)
        before = coming = self._strength.control
        if isinstance(before, Budget) and energy_now.requires_grad:
            coming = self._strength.coming(state, self._wells.weight, float(energy_now.detach()))
        penalty = coming.strength / 2 * energy_now
        if penalty.requires_grad:
            value = energy_now.detach()
            penalty.register_hook(partial(self._note_penalty, state, before, coming, value))
        return penalty

    def attach(self, optimizer: Optimizer, how: How = "proximal") -> Pull:
        """Pull on the weights at every `optimizer.step()` until `remove()` of the returned handle.

        Weights without a gradient in a step are pulled too; frozen ones are not. Several memories
        may be attached to one optimizer: their penalties add up.

        Args:
            optimizer: an optimizer of the model's parameters, or of some of them.
            how: `"proximal"` takes the pull implicitly after the optimizer's step and is stable for
                every strength; it knows SGD (with momentum, Nesterov), Adam, AdamW, NAdam, RAdam,
                RMSprop, Adagrad and Adafactor. `"gradient"` adds the penalty's gradient before the
                step, after any clipping, for every optimizer.

        Example:
            >>> import torch, ewc
            >>> model = torch.nn.Linear(4, 3)
            >>> memory = ewc.EWC(model, strength=100.0)
            >>> handle = memory.attach(torch.optim.Adam(model.parameters()))
            >>> handle.remove()
        """
        return self._attachments.attach(self, optimizer, how, self._parameters.optimized())

    def settle(self) -> None:
        """Pull now, if the pull on layers with Kronecker factors waits for some more steps.

        That pull is taken at every few steps, because it costs more than other pulls. Before the
        model is run in eval mode, consolidated or its handle removed, this happens by itself. Call
        it before you save a model that you have not evaluated. Otherwise it does nothing.

        Example:
            >>> import torch, ewc
            >>> model = torch.nn.Linear(4, 3)
            >>> memory = ewc.EWC(model, curvature="kronecker")
            >>> memory.settle()  # after training
            >>> torch.save(model.state_dict(), "model.pt")
        """
        if self._forces.waiting:
            self._forces.settle(self._pull_state())

    @contextmanager
    def without(self, *tasks: str) -> Iterator[None]:
        """Leave the wells of these tasks out while the `with` block runs, to train them again.

        States and copies of the memory still have all tasks.

        Example:
            >>> import torch, ewc
            >>> memory = ewc.EWC(torch.nn.Linear(4, 3), strength=100.0, keep_tasks=True)
            >>> memory.anchor(1.0, task="A")
            >>> with memory.without("A"):
            ...     pass  # train on A here
        """
        for task in tasks:
            self._wells.check_kept(task)
        left_out = (*self._wells.left_out, *tasks)
        self.settle()
        self._wells = self._wells.leave_out(left_out, self._parameters.all())
        self._forces.clear()
        try:
            yield
        finally:
            self.settle()
            self._forces.clear()
            remaining = list(self._wells.left_out)
            for task in tasks:
                remaining.remove(task)
            self._wells = self._wells.leave_out(tuple(remaining), self._parameters.all())

    def forget(self, task: str) -> None:
        """Drop the well of a task. The memory is then as if built from the other tasks.

        Example:
            >>> import torch, ewc
            >>> memory = ewc.EWC(torch.nn.Linear(4, 3), strength=100.0, keep_tasks=True)
            >>> memory.anchor(1.0, task="A")
            >>> memory.forget("A")
            >>> memory.tasks
            ()
        """
        self._wells.check_kept(task)
        self.settle()
        self._wells = self._wells.remove(task, self._parameters.all())
        self._forces.clear()
        self._hold_statistics()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the memory as a flat dict of tensors, for `torch.save` or safetensors.

        Example:
            >>> import torch, ewc
            >>> memory = ewc.EWC(torch.nn.Linear(4, 3), strength=100.0)
            >>> torch.save(memory.state_dict(), "memory.pt")
        """
        wells = self._wells.all_fitted(self._parameters.all())
        labels = self._label_check.known
        control, forces, weights = self._strength.control, self._forces, self._consolidated_at
        return pack(wells, control, labels, self.curvature, forces, weights)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over the strength or the budget, the decay and the tasks of a saved memory.

        Protected parameters must have the shapes they had at saving, others may differ; see `load`
        for a model that grew since.

        Example:
            >>> import torch, ewc
            >>> memory = ewc.EWC(torch.nn.Linear(4, 3), strength=100.0)
            >>> memory.load_state_dict(memory.state_dict())
        """
        parameters = self._parameters.matching()
        loaded = unpack(state, self._wells, parameters, self.curvature)
        self._restore(*loaded, fingerprint_in(state), parameters)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        precision: PrecisionType = "full",
        anchors: bool = True,
        card: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the memory to a safetensors file, all of it or nothing.

        Args:
            path: the file.
            precision: `"full"` writes the precision as it is, `"bfloat16"` and `"8 bits"` take 2
                bytes and 1 byte per weight and change it by at most 0.4 % and 4.5 %.
            anchors: whether to write the anchors. Without them, the file is for models that have
                exactly the present weights, those of a public checkpoint for example.
            card: what others should know, plain values: `data`, `kind`, `samples`, `notes`. The
                model, the number of parameters, the tasks and the version are added.

        Example:
            >>> import torch, ewc
            >>> memory = ewc.EWC(torch.nn.Linear(4, 3), strength=100.0)
            >>> fisher = memory.consolidate([torch.randn(8, 4)], task="A")
            >>> card = {"data": "random numbers", "kind": "exact", "samples": 8}
            >>> memory.save("memory.safetensors", precision="bfloat16", card=card)
        """
        state, weights = self.state_dict(), self._parameters.all()
        if any(map(is_sharded, state.values())):
            raise ValueError(
                "this rank has only shards of the memory: save it with "
                "torch.distributed.checkpoint, and load it with ewc.checkpoint.load_checkpoint"
            )
        names = {key.removeprefix("total.anchor.") for key in state} & weights.keys()
        size = sum(weights[name].numel() for name in names)
        card = automatic_card(self._parameters.model, size, self.tasks) | dict(card or {})
        save_state(path, state, weights, precision=precision, anchors=anchors, card=card)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: nn.Module,
        *,
        parameters: ParameterSelection = None,
        keep_tasks: bool | str | torch.device | None = None,
        rename: Rename | None = None,
        grow: bool = False,
        strength: float | None = None,
        budget: float | Literal["auto"] | None = None,
        statistics: Statistics = "hold",
        process_group: ProcessGroup = None,
    ) -> Self:
        """Return the memory in a file, for a model with the same parameters.

        Args:
            path: a file that `save` wrote.
            model: the model to protect. If the file has no anchors, they are its present weights.
            parameters: which parameters later tasks protect; those in the file must be among them.
            keep_tasks: as in the file by default; a device says where.
            rename: from the parameter names in the file to those of the model, a mapping or a
                function: `lambda name: name.replace(".default.", ".sales.")` for an adapter.
            grow: allow parameters with more rows or columns than in the file, such as those of a
                larger vocabulary. The old part, the leading block, is protected, the rest is free.
            strength: λ, in place of the strength or the budget in the file.
            budget: a budget, in place of them.
            statistics: the running statistics of batch norms, see `EWC`.
            process_group: the ranks that share the model, see `EWC`.

        Example:
            >>> import torch, ewc
            >>> model = torch.nn.Linear(4, 3)
            >>> memory = ewc.EWC(model, strength=100.0)
            >>> memory.anchor(1.0, task="A")
            >>> memory.save("memory.safetensors")
            >>> ewc.EWC.load("memory.safetensors", model)
            EWC(strength=100.0, decay=1.0, tasks=['A'])
        """
        return cls._from_stored(
            read_tensors(path),
            model,
            parameters=parameters,
            keep_tasks=keep_tasks,
            rename=rename,
            grow=grow,
            strength=strength,
            budget=budget,
            statistics=statistics,
            process_group=process_group,
        )

    def save_pretrained(
        self,
        directory: str | os.PathLike[str],
        *,
        precision: PrecisionType = "full",
        anchors: bool = True,
        card: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the memory to a directory, to be shared with others as a model is.

        Beside the file that `save` writes, `memory.safetensors`, there is a `config.json` that says
        which model the memory is of, with a fingerprint of its weights at the last consolidation,
        and a `README.md` with a card, as the Hub shows it.

        Args:
            directory: the directory, which is made if there is none.
            precision: see `save`.
            anchors: see `save`.
            card: see `save`.

        Example:
            >>> import torch, ewc
            >>> model = torch.nn.Linear(4, 3)
            >>> memory = ewc.EWC(model)
            >>> fisher = memory.consolidate([torch.randn(8, 4)], task="A")
            >>> memory.save_pretrained("memory-of-a", card={"data": "random numbers"})
            >>> ewc.EWC.from_pretrained("memory-of-a", model).tasks
            ('A',)
        """
        if not self.tasks or self._consolidated_at is None:
            raise ValueError(
                "expected a memory with a task, consolidated at weights that are not sharded, "
                "because the directory says which weights it belongs to: consolidate first, or "
                "use memory.save(path)"
            )
        directory, model = Path(directory), self._parameters.model
        directory.mkdir(parents=True, exist_ok=True)
        self.save(directory / FILE, precision=precision, anchors=anchors, card=card)
        known = read_card(directory / FILE)
        config = {
            "library_name": "ewc",
            **{key: known[key] for key in ("model", "parameters", "tasks", "version")},
            "model_class": type(model).__name__,
            "memory": type(self).__name__,
            "fingerprint": self._consolidated_at,
            "curvature": self.curvature,
            "center": self.center,
            "strength": self.strength if self.budget is None else None,
            "budget": self.budget,
            "decay": self.decay,
            "precision": precision,
            "anchors": anchors,
            "card": dict(card or {}),
        }
        write_description(directory, config)

    @classmethod
    def from_pretrained(
        cls, directory: str | os.PathLike[str], model: nn.Module, **options: Any
    ) -> Self:
        """Return the memory in a directory, for the model that it belongs to; refuse another one.

        A model of the same checkpoint has the right weights in any floating-point dtype. One
        that was trained since has not: there, `load` takes the file in the directory unchecked.

        Args:
            directory: what `save_pretrained` wrote.
            model: the model to protect, at the weights of the last consolidation.
            options: those of `load`.

        Example:
            >>> import torch, ewc
            >>> model = torch.nn.Linear(4, 3)
            >>> memory = ewc.EWC(model, curvature="kronecker")
            >>> fisher = memory.consolidate([torch.randn(8, 4)], task="A")
            >>> memory.save_pretrained("memory-of-linear")
            >>> ewc.EWC.from_pretrained("memory-of-linear", model.bfloat16(), strength=10.0)
            EWC(strength=10.0, decay=1.0, curvature='kronecker', tasks=['A'])
        """
        config = read_config(directory)
        which = refusal(directory, config, model)
        stored = read_tensors(Path(directory) / FILE)
        if fingerprint_in(stored.tensors) != config["fingerprint"]:
            raise ValueError(
                f"{directory} is damaged: its config.json and its {FILE} are of different memories"
            )
        shapes = saved_shapes(stored, options.get("rename"))
        weights = cls._weights_to_compare(model, shapes)
        if weights is not None and not of_same_weights(config["fingerprint"], weights):
            own, expected = fingerprint_of(weights)["bfloat16"], config["fingerprint"]["bfloat16"]
            raise ValueError(
                f"{which}, with other weights: their fingerprint is {own}, and that of the "
                f"memory's {expected}. Load the checkpoint that the memory belongs to. If this is "
                "the same model, trained since, ewc.EWC.load takes the memory without asking: "
                f"ewc.EWC.load({str(Path(directory) / FILE)!r}, model)"
            )
        try:
            return cls._from_stored(stored, model, **options)
        except ValueError as error:
            raise ValueError(f"{which}: {error}") from error

    @staticmethod
    def _weights_to_compare(
        model: nn.Module, shapes: Mapping[str, tuple[int, ...] | None]
    ) -> list[Tensor] | None:
        """Return the weights that a file protects; None if the model has not all of them.

        Of those that gained rows or columns, the part that they had at saving.
        """
        own, blocks = named_parameters(model), []
        for name, shape in shapes.items():
            if name not in own or is_sharded(own[name]):
                return None
            blocks.append(own[name].detach()[tuple(map(slice, shape or own[name].shape))])
            if shape is not None and blocks[-1].shape != shape:
                return None
        return blocks

    @classmethod
    def _from_stored(
        cls,
        stored: StoredTensors,
        model: nn.Module,
        *,
        parameters: ParameterSelection = None,
        keep_tasks: bool | str | torch.device | None = None,
        rename: Rename | None = None,
        grow: bool = False,
        strength: float | None = None,
        budget: float | Literal["auto"] | None = None,
        statistics: Statistics = "hold",
        process_group: ProcessGroup = None,
    ) -> Self:
        """Return the memory in a file that was read; the other arguments are those of `load`."""
        curvature = curvature_of(stored.tensors)
        if keep_tasks is None:
            keep_tasks = keeps_tasks(stored.tensors)
        memory = cls(
            model,
            strength=strength,
            budget=budget,
            parameters=parameters,
            keep_tasks=keep_tasks,
            statistics=statistics,
            process_group=process_group,
            **({} if curvature == "diagonal" else {"curvature": curvature}),
        )
        chosen, weights = memory._strength.control, memory._parameters.matching()
        memory.load_state_dict(load_state(stored, weights, rename=rename, grow=grow))
        if strength is not None or budget is not None:
            memory._strength.control = chosen
        return memory

    def __getstate__(self) -> dict[str, Any]:
        # The hook is one on the model, and is registered again on a copy when it is trained.
        return {**self.__dict__, "_wells": self._wells.leave_none_out(), "_settle_hook": None}

    def _remember(
        self,
        task: str,
        precision: Mapping[str, Tensor],
        layers: Mapping[str, Layer],
        selected: Mapping[str, Tensor],
    ) -> None:
        """Add the well of a task: the current weights with this precision."""
        well = well_at(selected, precision, layers)
        self._wells = self._wells.add(task, well, self._parameters.all())
        self._forces.clear()
        self._sums_before_pull = two_sums(selected)
        sharded = any(map(is_sharded, selected.values()))
        self._consolidated_at = None if sharded else fingerprint_of(selected.values())
        self._strength.begin_task()
        self._replacement_check.remember(selected)
        self._label_check.remember()
        self._hold_statistics()

    def _restore(
        self,
        wells: TaskWells,
        control: FixedStrength | Budget,
        labels: set[int],
        forces: HeldForces,
        consolidated_at: Fingerprint | None,
        parameters: Mapping[str, Tensor],
    ) -> None:
        """Take over what a saved memory had.

        Args:
            wells: its tasks.
            control: its strength or budget.
            labels: the labels that it knows.
            forces: what its pull on layers with factors holds.
            consolidated_at: the weights of its last consolidation, if they are known.
            parameters: the parameters that it protects.
        """
        self._wells, self._strength.control, self._forces = wells, control, forces
        self._label_check.known, self._consolidated_at = labels, consolidated_at
        self._sums_before_pull = None
        self._replacement_check.remember(parameters)
        self._hold_statistics()
        self._buffer_check.remember_at_next_step()

    def _hold_statistics(self) -> None:
        """Hold the running statistics while there are tasks, and note what the buffers are."""
        model = self._parameters.model
        self._buffer_check.remember(model)
        if not self.tasks:
            self._held.release()
        elif self._statistics == "hold":
            self._held.hold(model, self._is_protected)

    def _is_protected(self, name: str) -> bool:
        return name in self._wells.total.anchor

    def _check_replacements(self, state: PullState) -> None:
        """Warn of parameters that were replaced. Computed weights are new tensors at every step."""
        own = state.parameters
        if state.sources:
            own = {name: p for name, p in own.items() if name not in state.sources}
        self._replacement_check.check(own, state.well.anchor, state.well.diagonals)

    def _fisher(
        self, batches: Iterable[Any], options: Mapping[str, Any], at_least: int = 1
    ) -> dict[str, Tensor] | KroneckerFisher:
        """Return the Fisher of what is protected, and note the labels that are read for it.

        Args:
            batches: the data.
            options: those of `fisher_diagonal`.
            at_least: ignore the labels of batches with fewer samples.
        """
        watched = self._label_check.watch(batches, at_least)
        selected = self._parameters.selected().__contains__
        options = {**options, "parameters": selected, "process_group": self._ranks.group}
        with self._parameters.differentiable():
            if self.curvature == "kronecker":
                return fisher_kronecker(self._parameters.model, watched, **options)
            return fisher_diagonal(self._parameters.model, watched, **options)

    def _layers_of(
        self, fisher: KroneckerFisher, floor: float, normalize: float | None
    ) -> tuple[Mapping[str, Layer], dict[str, Tensor]]:
        """Return the precision of a task: its layers, and the diagonal of other parameters."""
        return layers_of(fisher, floor, normalize)

    def _ready_factors(
        self,
        fisher: KroneckerFisher,
        options: Mapping[str, Any],
        selected: Mapping[str, Tensor],
    ) -> KroneckerFisher:
        """Check a Fisher with factors that the user gave, and return it."""
        if self.curvature != "kronecker":
            raise ValueError("factors need a memory of them: EWC(model, curvature='kronecker')")
        check_defaults(options)
        check_factors(fisher, selected)
        return fisher

    def _hook_evaluations(self) -> None:
        """Let a waiting pull be taken before the model is run in eval mode."""
        if self._settle_hook is None:
            hook = SettleInEval(self)
            self._settle_hook = self._parameters.model.register_forward_pre_hook(hook)

    def _check_labels(self, fisher: Mapping[str, Tensor]) -> None:
        """Warn if the labels that were read for a Fisher are those of new classes."""
        ranks = find_ranks(self._parameters.model, self._ranks.group)
        self._label_check.new = set().union(*ranks.exchange(self._label_check.new))
        before = self._wells.total.diagonals() if self._protects_all() else {}
        self._label_check.check(fisher, before)

    def _protects_all(self) -> bool:
        """Whether all trainable parameters are protected: then a head is among them."""
        selected = self._parameters.selected()
        return all(n in selected for n, p in self._parameters.all().items() if p.requires_grad)

    def _before_step(self, how: How) -> None:
        """Find the strength for a step of an attached optimizer."""
        if not (self._wells.tasks and isinstance(self._strength.control, Budget)):
            return
        if self._wells.active.layers and self._forces.waiting:
            return  # the weights are on their way: a budget is measured after a pull
        weight, implicit = self._wells.weight, how == "proximal"
        self._strength.advance(self._pull_state, weight, implicit=implicit)

    def _start_pull(self) -> PullState:
        """Return what to pull with at this step of an attached optimizer."""
        self._sums_before_pull = None
        state = self._pull_state()
        if state.well.layers:
            self._hook_evaluations()
        self._attachments.check_owners(state, self._warned)
        self._check_replacements(state)
        if state.strength:
            self._double_pull_check.check()
            self._buffer_check.count_step(self._parameters.model, self._is_protected)
        return state

    def _note_penalty(
        self,
        state: PullState,
        before: FixedStrength | Budget,
        coming: FixedStrength | Budget,
        energy_now: Tensor,
        gradient: Tensor,
    ) -> None:
        """Note that a gradient flows through a penalty: it was in the loss of a training step.

        Args:
            state: what the penalty was computed from.
            before: the strength or the budget at that time.
            coming: that of the step.
            energy_now: the energy of the well at the weights of the step.
            gradient: that of the loss by the penalty.
        """
        self._sums_before_pull = None
        self._double_pull_check.note()
        self._check_replacements(state)
        self._buffer_check.count_step(self._parameters.model, self._is_protected)
        if isinstance(before, Budget):
            weight, value = self._wells.weight, float(energy_now)
            self._strength.advance_to(coming, before, state, weight, value)

    def _pull_state(self) -> PullState:
        """Fit the wells to the model, which may have moved or grown; return what pulls now."""
        parameters = self._parameters.all()
        self._wells = self._wells.fitted(parameters)
        control = self._strength.control
        return PullState(
            parameters,
            self._wells.active,
            control.strength,
            self._parameters.sources(),
            control.settled,
        )


# What trainers and checkpoints need of a memory, apart from its public methods.


def check_new_task(memory: EWC, task: str | None) -> None:
    """Raise if a task of this name could not be consolidated."""
    memory._wells.new_name(task)


def check_fit(memory: EWC) -> None:
    """Raise if the model has lost what is protected."""
    memory._pull_state()


def all_weights(memory: EWC) -> Mapping[str, Tensor]:
    """Return all weights of the model, by the names that the memory has for them."""
    return memory._parameters.all()


def trained_parameters(memory: EWC) -> list[Tensor]:
    """Return the parameters by which an optimizer moves what is protected."""
    return memory._parameters.optimized()


def try_consolidation(
    memory: EWC, batches: Iterable[Any], options: Mapping[str, Any], at_least: int
) -> None:
    """Raise, or warn, as consolidating these batches would; nothing is remembered.

    Args:
        memory: the memory.
        batches: some data of the task.
        options: those of `fisher_diagonal`.
        at_least: ignore the labels of batches with fewer samples.
    """
    memory._check_labels(diagonals_of(memory._fisher(batches, options, at_least)))
