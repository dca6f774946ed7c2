"""Warnings, each given once, of a pull that is too strong or does not reach all parameters.

The checks do not read tensors at every step, but only when the wells changed or lr · λ grew; for a
pull through the gradient of an optimizer that is not known, every 16 steps.
"""

import math
import operator
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from ewc.curvature.tasks import PullState
from ewc.curvature.wells import Well, energy
from ewc.diagnostics import (
    warn_of_centered,
    warn_of_divergence,
    warn_of_growth,
    warn_of_rounding,
    warn_of_standstill,
    warn_of_unowned,
)
from ewc.distributed.shards import (
    any_nonzero,
    is_sharded,
    largest,
    refuse_deepspeed,
    shard,
    shard_values,
    shards,
    sum_of_shards,
)
from ewc.pull.proximal import pull_weights, pulled_groups
from ewc.step_size import (
    Block,
    ParamGroup,
    ParamState,
    explicit_rate,
    is_known,
    lacks_noise,
    needs_whole_parameters,
    stability_limit,
    step_size_rule,
)

# The smallest `remaining_step_fraction` without a warning. On permuted MNIST (784-200-200-10, SGD
# at 0.1 with momentum 0.9 and Adam at 1e-3, λ from 1 to 1e8, a floor of 0 or 0.02) the next task
# was learned wherever 0.22 or more remained, and not at all where 0.01 or less did.
STANDSTILL = 0.1
# Of the energy, every so many steps: this much more each time, and this much more in all. With
# momentum and a learning rate that warms up weights move as t⁴, and the energy grows as t⁸: by less
# than STEEP from step 96 on, where it has become 6⁸ = 2e6 times what it was at step 16.
WINDOW, STEEP, RUNAWAY = 16, 4.0, 1e8
GROWTH = 10.0  # check again when lr · λ is this many times what it was at the last check


GRADIENT = "gradient"  # beside the state of an optimizer: the gradient of the last step


class OwnerCheck:
    """Checks that the optimizers that a memory is attached to have all parameters it protects."""

    def __init__(self) -> None:
        self._checked: tuple[Well, list[Tensor]] | None = None

    def check(self, attached: Iterable[Optimizer], state: PullState, warned: set[str]) -> None:
        """Warn once of each protected parameter that no attached optimizer has.

        Args:
            attached: the optimizers that the memory is attached to.
            state: what the memory pulls with.
            warned: the warnings that the memory has given, which this adds to.
        """
        names = list(state.well.names)
        parameters = [parameter for name in names for parameter in state.moved_by(name)]
        if state.strength == 0 or self._is_checked(state.well, parameters):
            return
        self._checked = (state.well, parameters)
        groups = [group for optimizer in attached for group in optimizer.param_groups]
        owned = {id(parameter) for group in groups for parameter in group["params"]}
        unowned = [
            name
            for name in names
            if (trained := [id(p) for p in state.moved_by(name) if p.requires_grad])
            if owned.isdisjoint(trained)
            if f"unowned {name}" not in warned
            if name not in state.well.precision or any_nonzero(state.well.precision[name])
        ]
        if unowned:
            refuse_deepspeed(parameters=parameters)  # it was given the attached optimizer
            warned.update(f"unowned {name}" for name in unowned)
            warn_of_unowned(unowned)

    def _is_checked(self, well: Well, parameters: list[Tensor]) -> bool:
        if self._checked is None or self._checked[0] is not well:
            return False
        return all(map(operator.is_, self._checked[1], parameters))


class StrengthCheck:
    """Checks whether the pull on one optimizer is too strong.

    `warned` are the warnings that the memory has given, which the methods add to.
    """

    def __init__(self) -> None:
        self._checked: tuple[list[Well], float] | None = None
        self._rounding_checked: Well | None = None
        self._largest: tuple[Well, dict[str, float]] | None = None
        self._steps, self._energy = 0, 0.0
        self._growing_from: tuple[int, float] | None = None

    def check_proximal(self, optimizer: Optimizer, state: PullState, warned: set[str]) -> None:
        """Warn once if hardly anything of the step that was just taken survives the pull.

        And once if the weights are too coarse for it, or if centered RMSprop sees no noise.
        """
        self._check_rounding(state, warned)
        self._check_centered(optimizer, state, warned)
        if "standstill" in warned or not state.settled:
            return
        product = state.strength * max(map(_rate, optimizer.param_groups))
        # The well of several memories is another one whenever a strength changes; theirs are not.
        wells = [part.well for part in state.parts or (state,)]
        if self._checked is not None:
            known, product_checked = self._checked
            same = len(known) == len(wells) and all(map(operator.is_, known, wells))
            if same and product <= GROWTH * product_checked:
                return
        self._checked = (wells, product)
        if (share := remaining_step_fraction(optimizer, state)) < STANDSTILL:
            warned.add("standstill")
            warn_of_standstill(share, state.strength)

    def _check_rounding(self, state: PullState, warned: set[str]) -> None:
        if "rounding" in warned or self._rounding_checked is state.well:
            return
        self._rounding_checked = state.well
        for name in state.well.names:
            if state.parameters[name].dtype in (torch.bfloat16, torch.float16):
                warned.add("rounding")
                warn_of_rounding(name, state.parameters[name])
                return

    def _check_centered(self, optimizer: Optimizer, state: PullState, warned: set[str]) -> None:
        if "centered" in warned or not any(g.get("centered") for g in optimizer.param_groups):
            return
        self._steps += 1
        if self._steps % WINDOW != 0:
            return
        for group, names in pulled_groups(optimizer, state):
            own = [optimizer.state.get(state.parameters[name], {}) for name in names]
            if lacks_noise(group, [shard_values(each) for each in own]):
                warned.add("centered")
                warn_of_centered(names[0])
                return

    def check_gradient(self, optimizer: Optimizer, state: PullState, warned: set[str]) -> None:
        """Warn once, before the step, if a pull through the gradient overshoots and diverges."""
        if "divergence" in warned:
            return
        explicit = dict.fromkeys((*state.well.precision, *state.well.layers))
        for group, pulled in pulled_groups(optimizer, state, explicit):
            # The curvature in what a weight is computed from is another one, and changes.
            names = [name for name in pulled if name not in state.sources]
            if not names or _on_device(group["lr"]):
                continue  # reading a rate from another device would make every step wait for it
            if (limit := stability_limit(optimizer, group)) == math.inf:
                continue
            precisions = self._largest_precisions(state.well)
            name = max(names, key=precisions.__getitem__)
            rate = explicit_rate(optimizer, group, state.parameters[name])
            if _on_device(rate):
                continue
            if (product := float(rate) * state.strength * precisions[name]) > limit:
                warned.add("divergence")
                warn_of_divergence(name, product, limit)
                return

    def check_growth(self, optimizer: Optimizer, state: PullState, warned: set[str]) -> None:
        """Warn once, at the beginning of a step, if a pull through the gradient runs away.

        This is for optimizers of which nothing is known. Weights that only move away from their
        anchors do so as a power of the number of steps, and ever more slowly; a pull that
        overshoots moves them by the same factor again and again.
        """
        if "divergence" in warned or is_known(optimizer):
            return
        self._steps += 1
        if self._steps % WINDOW != 0:
            return
        now = float(energy(replace(state.well, offset=0.0), state.parameters))
        last, self._energy = self._energy, now
        if now <= STEEP * last:
            self._growing_from = None
        elif self._growing_from is None and math.isfinite(now):
            self._growing_from = (self._steps, now)
        else:
            steps, before = self._growing_from or (self._steps - WINDOW, last)
            if not now <= RUNAWAY * before:  # or it is not finite
                warned.add("divergence")
                warn_of_growth(now / before if before > 0 else math.inf, self._steps - steps)

    def _largest_precisions(self, well: Well) -> dict[str, float]:
        if self._largest is None or self._largest[0] is not well:
            precisions = {name: largest(p) for name, p in well.precision.items()}
            for name, layer in well.layers.items():
                precisions[name] = precisions.get(name, 0.0) + layer.largest()
            self._largest = (well, precisions)
        return self._largest[1]


def remaining_step_fraction(optimizer: Optimizer, state: PullState) -> float:
    """Return how much of the optimizer's step the pull leaves: Σ |Δ| / (1 + ηλP) over Σ |Δ|.

    Δ = ηg is the step of each weight. Weights that are not protected count too: all of their step
    survives.
    """
    rule = step_size_rule(optimizer)
    names = {id(state.parameters[name]): name for name in state.well.precision}
    survived, total = 0.0, 0.0
    for group in optimizer.param_groups:
        if not (moved := [p for p in group["params"] if p.grad is not None]):
            continue
        shards_of = shards(moved)
        local = [_as_real(own) for own in shards_of]
        precisions = [
            shard(state.well.precision[names[id(p)]])
            if id(p) in names
            else own.new_zeros(()).expand_as(own)
            for p, own in zip(moved, local, strict=True)
        ]
        gradients = [_as_real(_dense(own.grad)) for own in shards_of if own.grad is not None]
        states: list[ParamState] = [
            {key: _as_real(v) if isinstance(v, Tensor) else v for key, v in own.items()}
            | {GRADIENT: gradient}  # which is cut like the rest of the state
            for p, gradient in zip(moved, gradients, strict=True)
            for own in [shard_values(optimizer.state.get(p, {}))]
        ]
        sums = [0.0, 0.0]
        anchors = local  # they do not matter: nothing is pulled here
        everything = Block(local, [True] * len(local), states, precisions, anchors)
        for block in everything.cut(whole=needs_whole_parameters(optimizer)):
            own_states = [{k: v for k, v in s.items() if k != GRADIENT} for s in block.states]
            step = rule(group, block.parameters, own_states).rooted()
            weights = pull_weights(block.precisions, step, state.strength)
            for index, (weight, own) in enumerate(zip(weights, block.states, strict=True)):
                rate = step.rate if step.scale is None else step.rate / step.scale[index]
                change = own[GRADIENT].abs() * rate
                sums[0] += float((change * (1 - weight)).sum())
                sums[1] += float(change.sum())
        if is_sharded(moved[0]):  # then all are, as a rule
            sums = sum_of_shards(torch.tensor(sums, device=moved[0].device), moved[0]).tolist()
        survived, total = survived + sums[0], total + sums[1]
    return survived / total if total > 0 else 1.0


def _on_device(rate: float | Tensor) -> bool:
    return isinstance(rate, Tensor) and rate.device.type != "cpu"


def _rate(group: ParamGroup) -> float:
    """Return the learning rate of a group; 1 for one on a device, which is not read for a check."""
    rate = group.get("lr", 1.0)
    return 1.0 if _on_device(rate) else float(rate)


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.layout != torch.strided else gradient


def _as_real(tensor: Tensor) -> Tensor:
    """Return a complex tensor as real numbers, which is how optimizers step; others as they are."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
