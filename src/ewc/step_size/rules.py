"""Which rule gives the step size of which optimizer."""

import inspect
from collections.abc import Callable
from typing import Any

from torch.optim import (
    SGD,
    Adafactor,
    Adagrad,
    Adam,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
)

from ewc.step_size.adafactor import adafactor_step_size, check_adafactor
from ewc.step_size.adam import adam_step_size, nadam_step_size, radam_step_size
from ewc.step_size.rmsprop import adagrad_step_size, bound_deviation, rmsprop_step_size
from ewc.step_size.sgd import sgd_step_size
from ewc.step_size.step import Correction, StepSizeRule
from ewc.step_size.weight_decay import undo_excess_decay

_RULES: dict[Callable[..., Any], StepSizeRule] = {
    inspect.unwrap(SGD.step): sgd_step_size,
    inspect.unwrap(Adam.step): adam_step_size,  # AdamW is a subclass that keeps it
    inspect.unwrap(NAdam.step): nadam_step_size,
    inspect.unwrap(RAdam.step): radam_step_size,
    inspect.unwrap(RMSprop.step): rmsprop_step_size,
    inspect.unwrap(Adagrad.step): adagrad_step_size,
    inspect.unwrap(Adafactor.step): adafactor_step_size,
}
CORRECTIONS: dict[StepSizeRule, Correction] = {
    adam_step_size: undo_excess_decay,
    nadam_step_size: undo_excess_decay,
    radam_step_size: undo_excess_decay,
    rmsprop_step_size: bound_deviation,
}


def step_size_rule(optimizer: Optimizer) -> StepSizeRule:
    """Return the function that computes the step size of this optimizer, or raise.

    A subclass counts as its parent as long as it does not define a `step` of its own. Your own
    optimizer can define its step size in a method `step_size`, with the arguments of the rules.
    """
    rule = _own_rule(optimizer) or _RULES.get(inspect.unwrap(type(optimizer).step))
    if rule is None:
        raise ValueError(
            "how='proximal' knows the steps of SGD, Adam, AdamW, NAdam, RAdam, RMSprop, Adagrad "
            f"and Adafactor, not those of {type(optimizer).__name__}; "
            "use attach(optimizer, how='gradient'), or give it a method "
            "step_size(group, parameters, states) -> ewc.step_size.StepSize"
        )
    if rule is adafactor_step_size:
        check_adafactor(optimizer)
    return rule


def needs_whole_parameters(optimizer: Optimizer) -> bool:
    """Whether the rule cannot be used on a part of a parameter.

    Adafactor looks at the size of the whole, and the states of a `step_size` of the optimizer's own
    may have any shapes.
    """
    if _own_rule(optimizer) is not None:
        return True
    return step_size_rule(optimizer) is adafactor_step_size


def _own_rule(optimizer: Optimizer) -> StepSizeRule | None:
    """Return the optimizer's method `step_size`; an attribute of that name may be a number."""
    own: StepSizeRule | None = getattr(optimizer, "step_size", None)
    return own if callable(own) else None
