"""How large the steps of an optimizer are, and what else the pull has to know about it.

The proximal pull has its fixed point at the minimum of loss + penalty if η is the step that the
optimizer takes for a weight in the long run: update = η · gradient. There is one file per family of
optimizers, and `rules` finds the right one.
"""

from ewc.step_size.rules import step_size_rule
from ewc.step_size.step import How, ParamGroup, ParamState, StepSize, StepSizeRule, moments

__all__ = [
    "How",
    "ParamGroup",
    "ParamState",
    "StepSize",
    "StepSizeRule",
    "moments",
    "step_size_rule",
]
