"""The proximal pull of layers with Kronecker factors, which looks at all weights of a layer.

The gradient of the penalty of a layer is λ G Δ A, and an implicit step takes two rotations into the
eigenbases and two back, which cost more than a training step of a small batch. So the gradient is
held between the pulls, as a force p in the layer's shape. Each step of the optimizer is followed by

    Δ ← Δ − η ∘ p,    η the optimizer's own step size of each weight,

and every K-th step, with d the sum of the layer's step sizes since the last pull, by

    Δ′ = (1 + d λ H)⁻¹ (Δ + d p),    p′ = (Δ + d p − Δ′) / d = λ H Δ′,

which takes the force of those steps back, and that of the new weights for them, implicitly. In the
eigenbases H is diagonal. This is stable for every λ. At rest p = λ H Δ, and the steps of the
optimizer and of the force cancel, for any η: the fixed point is the minimum of loss + penalty, with
momentum, with a step size of its own for each weight, and for every K.

η may differ from weight to weight by orders of magnitude, d may not: stiff directions, in which
Δ′ ≈ 0, converge by the factor 1 − η / d per pull. So the step of a weight, the optimizer's
included, is cut to d where it is larger, which is `LARGEST` times the step size of the layer's mean
√v̂.

K is chosen so that a pull costs less than the steps between two pulls.
"""

import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ewc.curvature.kronecker import Layer
from ewc.curvature.tasks import PullState
from ewc.step_size import (
    ParamGroup,
    ParamState,
    StepSize,
    StepSizeRule,
    block_size,
    needs_whole_parameters,
    pieces,
    state_with_gain,
)

LARGEST = 3.0  # step size of a weight in units of that of the mean √v̂ of its layer
# A pull takes four products of a layer's matrix with eigenvectors, a training step three with the
# rows of the batch. `PULL_TIME` is how much a pull may take of the steps between two pulls, counted
# like that (the large products of a pull run some three times as fast). A batch is taken to have
# `ROWS` rows, or `SEQUENCES` samples where a sample has many positions.
PULL_TIME, ROWS, SEQUENCES = 0.25, 128, 8


def steps_between_pulls(layers: Mapping[str, Layer]) -> int:
    """Return K: so many that the pulls cost less than the training steps between them."""
    pull = step = 0.0
    for layer in layers.values():
        outputs, along_outputs = layer.outputs.matrix.shape
        inputs, along_inputs = layer.inputs.matrix.shape
        pull += 4 * inputs * outputs * along_outputs + 4 * along_outputs * inputs * along_inputs
        if layer.outputs.is_cut:
            pull += 4 * outputs * inputs * along_inputs
        step += 6 * max(ROWS, SEQUENCES * layer.positions) * inputs * outputs
    return max(1, math.ceil(pull / (PULL_TIME * step))) if step else 1


@dataclass
class HeldForce:
    """The force on one layer, and what happened since it was computed.

    Attributes:
        force: p, in the layer's joined shape.
        waited: steps since the last pull.
        distance: d, the sum of the layer's step sizes in these steps.
        scale: the mean of 1 / η over the layer at the last pull; 0 before the first one.
    """

    force: Tensor
    waited: int = 0
    distance: float = 0.0
    scale: float = 0.0


@dataclass
class HeldForces:
    """The forces of one memory on its layers, by the names of the weights.

    They belong to the memory, not to a handle, so that they are saved with it.
    """

    layers: dict[str, HeldForce] = field(default_factory=dict)

    @property
    def waiting(self) -> bool:
        """Whether there were steps since the last pull."""
        return any(held.waited for held in self.layers.values())

    def clear(self) -> None:
        """Forget the forces: the well is another one, or the weights are at its center."""
        self.layers.clear()

    @torch.no_grad()
    def settle(self, state: PullState) -> None:
        """Pull now, if there were steps since the last pull.

        Args:
            state: what the memory pulls with.
        """
        for name, held in self.layers.items():
            if held.waited and name in state.well.layers:
                _pull(name, held, state)

    @torch.no_grad()
    def take(
        self,
        optimizer: Optimizer,
        state: PullState,
        rule: StepSizeRule,
        gains: Mapping[int, float],
        cuts: "StepCuts",
        not_skipped: float | Tensor,
    ) -> None:
        """Take the force after a step of the optimizer.

        Args:
            optimizer: the optimizer.
            state: what the memory pulls with.
            rule: the optimizer's step size.
            gains: those of `MomentumGains`.
            cuts: what is cut from the step, the same for all memories that pull at it.
            not_skipped: 0 if the optimizer skipped its step, else 1.
        """
        if not state.well.layers:
            return
        groups = {
            id(parameter): {**group, "lr": rate}
            for group in optimizer.param_groups
            for rate in [float(group["lr"])]  # read once, in case it is on a device
            for parameter in (group["params"] if rate > 0 else [])
        }
        whole = needs_whole_parameters(optimizer)
        for name, layer in state.well.layers.items():
            own = {each: state.parameters[each] for each in names_of(name, layer)}
            moved = {n: p for n, p in own.items() if id(p) in groups and p.requires_grad}
            if not moved:
                continue
            held = self.layers.get(name)
            if held is None:
                shape = (len(layer.outputs.matrix), len(layer.inputs.matrix))
                force = layer.inputs.matrix.new_zeros(shape)
                held = self.layers[name] = HeldForce(force)
            forces = {n: layer.shaped(f, own[n]) for n, f in layer.split(name, held.force).items()}
            steps = [
                ParameterStep(
                    parameter,
                    forces[each],
                    cuts.before.get(id(parameter)),
                    state_with_gain(optimizer, parameter, gains),
                    groups[id(parameter)],
                    rule,
                    whole,
                )
                for each, parameter in moved.items()
            ]
            _take(held, steps, cuts, not_skipped)

    @torch.no_grad()
    def pull_if_due(self, state: PullState) -> None:
        """Pull on the layers that waited for K steps, after all forces on them were taken.

        Args:
            state: what the memory pulls with.
        """
        steps = steps_between_pulls(state.well.layers)
        for name, held in self.layers.items():
            if held.waited >= steps and name in state.well.layers:
                _pull(name, held, state)


@dataclass
class StepCuts:
    """What is cut from one step of an optimizer whose step size differs from weight to weight.

    Attributes:
        before: the weights before the step, by `id`.
        several: whether several memories pull. Only the first one cuts.
        left: what is left of the step of each piece of a weight, by `id` and number.
    """

    before: Mapping[int, Tensor]
    several: bool = False
    left: dict[tuple[int, int], Tensor] = field(default_factory=dict)


class ParameterStep(NamedTuple):
    """A step of the optimizer on one parameter of a layer.

    Attributes:
        parameter: θ after the step.
        force: p, in the shape of the parameter.
        before: θ before the step, if it was noted.
        state: the optimizer's state of the parameter.
        group: the optimizer's options.
        rule: the optimizer's step size.
        whole: whether the rule needs the whole parameter.
    """

    parameter: Tensor
    force: Tensor
    before: Tensor | None
    state: ParamState
    group: ParamGroup
    rule: StepSizeRule
    whole: bool

    def pieces(self) -> Iterator[tuple[Sequence[Tensor], StepSize]]:
        """Yield θ, p and what θ was before, in pieces that fit the cache, and their step size."""
        size = self.parameter.numel() if self.whole else block_size(self.parameter.device)
        tensors = [self.parameter, self.force]
        if self.before is not None:
            tensors.append(self.before)
        for piece, state in pieces(tensors, self.state, size):
            yield piece, self.rule(self.group, [piece[0]], [state]).rooted()


def names_of(name: str, layer: Layer) -> tuple[str, ...]:
    """Return the parameters of a layer: the weight, and the bias if there is one."""
    return (name,) if layer.bias is None else (name, layer.bias)


def _take(
    held: HeldForce, steps: Sequence[ParameterStep], cuts: StepCuts, not_skipped: float | Tensor
) -> None:
    """Δ ← Δ − η ∘ p, with steps larger than d cut to it; count the step."""
    held.waited += 1
    if not held.scale or held.waited == 1:
        held.scale = _mean_inverse(steps)
    longest = LARGEST / held.scale if held.scale else 0.0
    for step in steps:
        for number, (piece, size) in enumerate(step.pieces()):
            if size.scale is None:
                _subtract(piece[0], piece[1], size.rate * not_skipped)
                longest = max(longest, size.rate)
            else:
                _take_cut(piece, size, longest, cuts, (id(step.parameter), number), not_skipped)
    held.distance += longest


def _take_cut(
    piece: Sequence[Tensor],
    size: StepSize,
    longest: float,
    cuts: StepCuts,
    key: tuple[int, int],
    not_skipped: float | Tensor,
) -> None:
    """Cut steps of η = rate / scale to the longest one, and take the force with such steps."""
    (parameter, force, *before), rate = piece, size.rate
    assert size.scale is not None
    scale = size.scale[0]
    left = cuts.left.get(key)  # of the step: min(1, longest / η)
    if left is None:
        left = (scale * (longest / rate)).clamp_(max=1.0)
        if before and parameter.dtype == left.dtype:
            torch.lerp(before[0], parameter, left, out=parameter)
        elif before:
            start, end = before[0].to(left.dtype), parameter.to(left.dtype)
            parameter.copy_(torch.lerp(start, end, left))
        if cuts.several:
            cuts.left[key] = left
    if parameter.dtype == force.dtype and not isinstance(not_skipped, Tensor):
        parameter.addcdiv_(left * force, scale, value=-rate * not_skipped)
    else:
        _subtract(parameter, left * force / scale, rate * not_skipped)


def _subtract(parameter: Tensor, tensor: Tensor, factor: float | Tensor) -> None:
    """Subtract a tensor times a factor; in one pass where nothing has to be converted."""
    if parameter.dtype == tensor.dtype and not isinstance(factor, Tensor):
        parameter.sub_(tensor, alpha=factor)
    else:
        parameter.sub_((tensor * factor).to(parameter.dtype))


def _mean_inverse(steps: Iterable[ParameterStep]) -> float:
    """Return the mean of 1 / η over the weights that move; 0 if η is the same for all."""
    totals, count = [], 0
    for step in steps:
        for piece, size in step.pieces():
            if size.scale is None:
                break
            totals.append(size.scale[0].sum() / size.rate)
            count += piece[0].numel()
    return float(sum(totals)) / count if count else 0.0


def _pull(name: str, held: HeldForce, state: PullState) -> None:
    """Δ′ = (1 + d λ H)⁻¹ (Δ + d p) and p′ = λ H Δ′."""
    layer = state.well.layers[name]
    distance, scale = held.distance, held.distance * state.strength
    if distance > 0:
        start = state.well.joined_distance(name, state.parameters)
        start.add_(held.force, alpha=distance)
        # What is pulled back, not what is left: directions without precision stay as they are.
        back = layer.apply(lambda precision: _pulled_back(precision * scale), start)
        held.force = back / distance
        parts = layer.split(name, start - back)
        for each, part in parts.items():
            parameter = state.parameters[each]
            if parameter.requires_grad:
                target = layer.shaped(part, parameter) + state.well.anchor[each]
                parameter.copy_(target)
    held.waited, held.distance = 0, 0.0


def _pulled_back(stiffness: Tensor) -> Tensor:
    """Return how much of Δ + d p an implicit step of stiffness d λ H takes back."""
    return stiffness / (1 + stiffness)


def layer_gradients(state: PullState) -> dict[str, Tensor]:
    """Return λ G Δ A of all layers, by the names of their parameters."""
    gradients: dict[str, Tensor] = {}
    for name, layer in state.well.layers.items():
        gradient = layer.gradient(state.well.joined_distance(name, state.parameters))
        for each, part in layer.split(name, gradient.mul_(state.strength)).items():
            gradients[each] = layer.shaped(part, state.parameters[each])
    return gradients


class SettleInEval:
    """A hook on a model that lets its memory pull before the model is run in eval mode.

    It does not keep the memory alive, and copies of the model do not have it.
    """

    def __init__(self, memory: Any) -> None:
        self._memory = weakref.ref(memory)

    def __call__(self, module: nn.Module, args: Any) -> None:
        memory = self._memory()
        if memory is not None and not module.training:
            memory.settle()

    def __deepcopy__(self, memo: Any) -> "SettleInEval":
        return SettleInEval(_Nothing())

    def __reduce__(self) -> tuple[Any, ...]:
        return SettleInEval, (_Nothing(),)


class _Nothing:
    """In the place of a memory that is not there."""


def layer_parameters(state: PullState) -> Iterator[Tensor]:
    """Yield the parameters that are in layers."""
    for name, layer in state.well.layers.items():
        for each in names_of(name, layer):
            yield state.parameters[each]
