"""Warnings, each given once, of a pull that is too strong or does not reach all parameters.

The checks do not read tensors at every step, but only when the wells changed or lr · λ grew.
"""

import math
import operator
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from ewc.blocks import Block
from ewc.pull_state import PullState
from ewc.pulled_parameters import pulled_groups
from ewc.sharding import (
    any_nonzero,
    is_sharded,
    largest,
    shard,
    shard_values,
    shards,
    sum_of_shards,
)
from ewc.step_size.rules import needs_whole_parameters, step_size_rule
from ewc.step_size.sgd import stability_limit
from ewc.warnings import (
    warn_of_divergence,
    warn_of_rounding,
    warn_of_standstill,
    warn_of_unowned,
)
from ewc.wells import Well

# The smallest `surviving_share` without a warning. On permuted MNIST (784-200-200-10, SGD at 0.1
# with momentum 0.9 and Adam at 1e-3, λ from 1 to 1e8, a floor of 0 or 0.02) the next task was
# learned wherever 0.22 or more survived, and not at all where 0.01 or less did.
STANDSTILL = 0.1
GROWTH = 10.0  # check again when lr · λ is this many times what it was at the last check


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
        names = list(state.well.precision)
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
            if f"unowned {name}" not in warned and any_nonzero(state.well.precision[name])
        ]
        if unowned:
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
        self._checked: tuple[Well, float] | None = None
        self._rounding_checked: Well | None = None
        self._largest: tuple[Well, dict[str, float]] | None = None

    def check_proximal(self, optimizer: Optimizer, state: PullState, warned: set[str]) -> None:
        """Warn once if hardly anything of the step that was just taken survives the pull.

        And once if the weights are too coarse for it.
        """
        self._check_rounding(state, warned)
        if "standstill" in warned:
            return
        rates = (float(group.get("lr", 1.0)) for group in optimizer.param_groups)
        product = state.strength * max(rates)
        if self._checked is not None:
            well, product_checked = self._checked
            if well is state.well and product <= GROWTH * product_checked:
                return
        self._checked = (state.well, product)
        if (share := surviving_share(optimizer, state)) < STANDSTILL:
            warned.add("standstill")
            warn_of_standstill(share, state.strength)

    def _check_rounding(self, state: PullState, warned: set[str]) -> None:
        if "rounding" in warned or self._rounding_checked is state.well:
            return
        self._rounding_checked = state.well
        for name in state.well.precision:
            if state.parameters[name].dtype in (torch.bfloat16, torch.float16):
                warned.add("rounding")
                warn_of_rounding(name, state.parameters[name])
                return

    def check_gradient(self, optimizer: Optimizer, state: PullState, warned: set[str]) -> None:
        """Warn once, before the step, if a pull through the gradient overshoots and diverges."""
        if "divergence" in warned:
            return
        for group, pulled in pulled_groups(optimizer, state):
            # The curvature in what a weight is computed from is another one, and changes.
            names = [name for name in pulled if name not in state.sources]
            limit, rate = stability_limit(optimizer, group), group["lr"]
            if (
                not names
                or limit == math.inf
                or (isinstance(rate, Tensor) and rate.device.type != "cpu")
            ):
                continue  # reading a rate from another device would make every step wait for it
            precisions = self._largest_precisions(state.well)
            name = max(names, key=precisions.__getitem__)
            if (product := float(rate) * state.strength * precisions[name]) > limit:
                warned.add("divergence")
                warn_of_divergence(name, product, limit)
                return

    def _largest_precisions(self, well: Well) -> dict[str, float]:
        if self._largest is None or self._largest[0] is not well:
            self._largest = (well, {name: largest(p) for name, p in well.precision.items()})
        return self._largest[1]


def surviving_share(optimizer: Optimizer, state: PullState) -> float:
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
        local = shards(moved)
        precisions = [
            shard(state.well.precision[names[id(p)]])
            if id(p) in names
            else own.new_zeros(()).expand_as(own)
            for p, own in zip(moved, local, strict=True)
        ]
        gradients = [_dense(own.grad) for own in local if own.grad is not None]
        states = [shard_values(optimizer.state.get(p, {})) for p in moved]
        sums = [0.0, 0.0]
        # The gradients are in the place of the anchors, to be cut like the rest.
        everything = Block(local, [True] * len(local), states, precisions, gradients)
        for block in everything.cut(whole=needs_whole_parameters(optimizer)):
            step = rule(group, block.parameters, block.states).rooted()
            for index, (precision, gradient) in enumerate(
                zip(block.precisions, block.anchors, strict=True)
            ):
                rate = step.rate if step.scale is None else step.rate / step.scale[index]
                change = gradient.abs() * rate
                sums[0] += float((change / (1 + rate * state.strength * precision)).sum())
                sums[1] += float(change.sum())
        if is_sharded(moved[0]):  # then all are, as a rule
            sums = sum_of_shards(torch.tensor(sums, device=moved[0].device), moved[0]).tolist()
        survived, total = survived + sums[0], total + sums[1]
    return survived / total if total > 0 else 1.0


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.layout != torch.strided else gradient
