"""The memory: all tasks learned so far, as one quadratic well that pulls on the weights.

    penalty(θ) = (strength / 2) Σ_t Σ_i F_ti (θ_i − θ*_ti)²

with F_t the Fisher diagonal of task t and θ*_t the weights that solved it (the paper's equation 3).
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ewc.attachments import Attachments
from ewc.fisher import fisher_diagonal
from ewc.fisher.datasets import Collate
from ewc.fisher.likelihood import Kind, Likelihood, Positions
from ewc.fisher.scaling import check_shaping, shaped
from ewc.memory_files import MemoryFiles
from ewc.memory_strength import MemoryStrength
from ewc.parameters import ParameterSelection
from ewc.processes import ProcessGroup, choose_processes
from ewc.pull import Pull
from ewc.pull_state import PullState
from ewc.ready_fisher import ready_fisher
from ewc.serialization import pack, unpack
from ewc.step_size import How
from ewc.task_wells import TaskWells
from ewc.warnings import fingerprint, warn_if_moved, warn_if_zero
from ewc.wells import uniform_precision, well_at


class EWC(MemoryFiles, MemoryStrength):
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
        parameters: which parameters to protect, by name (`"!head.*"` leaves a head out).
        keep_tasks: also keep each task's own well, which `without`, `forget` and consolidating a
            task again need. A device, such as `"cpu"`, says where.
        process_group: the processes that share the model, see `fisher_diagonal`.

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
        parameters: ParameterSelection = None,
        keep_tasks: bool | str | torch.device = False,
        process_group: ProcessGroup = None,
    ) -> None:
        self._choose_strength(strength, budget)
        if not 0 <= decay <= 1:
            raise ValueError(f"expected 0 <= decay <= 1, got {decay}")
        storage = None if isinstance(keep_tasks, bool) else torch.device(keep_tasks)
        self._wells = TaskWells(float(decay), keep_tasks is not False, storage)
        self._parameters = self._Parameters(model, parameters)
        self._processes = choose_processes(model, process_group)
        self._attachments = Attachments()
        # Of the weights at the last consolidation, until something pulls on them.
        self._fingerprint: dict[str, tuple[float, float]] | None = None
        self._parameters.selected()  # raises if there is none

    @property
    def decay(self) -> float:
        """γ of online EWC; 1 means that every task counts the same forever."""
        return self._wells.decay

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the tasks, in the order of their consolidation."""
        return self._wells.tasks

    def __repr__(self) -> str:
        how = f"strength={self.strength}" if self.budget is None else f"budget={self.budget!r}"
        return f"{type(self).__name__}({how}, decay={self.decay}, tasks={list(self.tasks)})"

    def consolidate(
        self,
        batches: Iterable[Any] | Mapping[str, Tensor],
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
    ) -> dict[str, Tensor]:
        """Remember the current weights as the solution of a task. If it fails, nothing changes.

        Args:
            batches: data of the task, as for `fisher_diagonal`; or a ready Fisher, a mapping of
                parameter names to tensors, for which `kind` to `collate` must be left out.
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
            The Fisher that was stored, one tensor per parameter.

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
        fisher = ready_fisher(batches, options, selected) if isinstance(batches, Mapping) else None
        if self._fingerprint is not None:
            warn_if_moved(self._fingerprint, self._parameters.all())
        if fisher is None:
            options |= {"parameters": selected.__contains__, "process_group": self._processes.group}
            with self._parameters.differentiable():
                fisher = fisher_diagonal(self._parameters.model, batches, **options)
        warn_if_zero(fisher, self._wells.total.precision if self.decay > 0 else {})
        fisher = shaped(fisher, floor=floor, normalize=normalize)
        self._remember(task, fisher, selected)
        return {name: tensor.clone() for name, tensor in fisher.items()}

    def anchor(self, precision: float | Mapping[str, Tensor], *, task: str | None = None) -> None:
        """Remember the current weights with a given precision, one tensor per parameter.

        A number is the precision of all weights, which gives the L2 baseline of the paper.

        Example:
            >>> import torch, ewc
            >>> memory = ewc.EWC(torch.nn.Linear(4, 3), strength=100.0)
            >>> memory.anchor(1.0, task="L2")
        """
        task = self._wells.new_name(task)
        selected = self._parameters.selected()
        if not isinstance(precision, Mapping):
            precision = uniform_precision(selected, precision)
        self._remember(task, precision, selected)

    def penalty(self) -> Tensor:
        """Return (strength / 2) Σ_t Σ_i F_ti (θ_i − θ*_ti)², to add to a loss instead of `attach`.

        Example:
            >>> import torch, ewc
            >>> model = torch.nn.Linear(4, 3)
            >>> memory = ewc.EWC(model, strength=100.0)
            >>> memory.anchor(1.0)
            >>> loss = model(torch.randn(8, 4)).square().mean() + memory.penalty()
        """
        if torch.is_grad_enabled():  # without gradients it is only displayed, and pulls on nothing
            self._fingerprint = None
            self._adapt_strength()
        return self._fit_wells().penalty()

    def attach(
        self, optimizer: Optimizer, how: How = "proximal", *, compiled: bool = False
    ) -> Pull:
        """Pull on the weights at every `optimizer.step()` until `remove()` of the returned handle.

        Weights without a gradient in a step are pulled too; frozen ones are not. Several memories
        may be attached to one optimizer: their penalties add up.

        Args:
            optimizer: an optimizer of the model's parameters, or of some of them.
            how: `"proximal"` takes the pull implicitly after the optimizer's step and is stable for
                every strength; it knows SGD (with momentum, Nesterov), Adam, AdamW, NAdam, RAdam,
                RMSprop, Adagrad and Adafactor. `"gradient"` adds the penalty's gradient before the
                step, after any clipping, for every optimizer.
            compiled: pull with kernels that `torch.compile` makes, which takes some seconds once
                and needs a C++ compiler (on GPUs triton). The weights are the same to rounding.

        Example:
            >>> import torch, ewc
            >>> model = torch.nn.Linear(4, 3)
            >>> memory = ewc.EWC(model, strength=100.0)
            >>> handle = memory.attach(torch.optim.Adam(model.parameters()))
            >>> handle.remove()
        """
        parameters = self._parameters.optimized()
        return self._attachments.attach(
            optimizer, how, parameters, self._start_pull, self._adapt_strength, compiled=compiled
        )

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
        self._wells = self._wells.leave_out(left_out, self._parameters.all())
        try:
            yield
        finally:
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
        self._wells = self._wells.remove(task, self._parameters.all())

    def state_dict(self) -> dict[str, Tensor]:
        """Return the memory as a flat dict of tensors, for `torch.save` or safetensors.

        Example:
            >>> import torch, ewc
            >>> memory = ewc.EWC(torch.nn.Linear(4, 3), strength=100.0)
            >>> torch.save(memory.state_dict(), "memory.pt")
        """
        return pack(self._wells.all_fitted(self._parameters.all()), self._control)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over the strength or the budget, the decay and the tasks of a saved memory.

        Protected parameters must have the shapes they had at saving, others may differ; see `load`
        for a model that grew since.

        Example:
            >>> import torch, ewc
            >>> memory = ewc.EWC(torch.nn.Linear(4, 3), strength=100.0)
            >>> memory.load_state_dict(memory.state_dict())
        """
        wells, control = unpack(state, self._wells, self._parameters.matching())
        self._control, self._wells, self._fingerprint = control, wells, None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_wells": self._wells.leave_none_out()}

    def _remember(
        self, task: str, precision: Mapping[str, Tensor], selected: Mapping[str, Tensor]
    ) -> None:
        """Add the well of a task: the current weights with this precision."""
        self._wells = self._wells.add(task, well_at(selected, precision), self._parameters.all())
        self._fingerprint = fingerprint(selected)

    def _start_pull(self) -> PullState:
        """Return what to pull with at this step of an attached optimizer."""
        self._fingerprint = None
        state = self._fit_wells()
        self._attachments.check_owners(state)
        return state
