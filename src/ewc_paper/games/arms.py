"""The arms that the experiments on games compare: what each network has, and who has none."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Arm:
    """What sets an arm apart; the training loop is the same for all."""

    title: str  # in tables and figures
    protected: bool = False  # by EWC
    recognizes: bool = False  # works out the task from the frames, instead of being told
    gated: bool = False  # each task does without some of the units


ARMS = {
    "plain": Arm("plain"),
    "ewc-labels": Arm("EWC, true labels", protected=True),
    "ewc-fmn": Arm("EWC, recognized", protected=True, recognizes=True),
    "gates": Arm("gates alone, true labels", gated=True),
    "ewc-gates-labels": Arm("EWC + gates, true labels", protected=True, gated=True),
    "ewc-gates-fmn": Arm("EWC + gates, recognized", protected=True, recognizes=True, gated=True),
    "single": Arm("one network per game"),
    "random": Arm("random player"),
}
SINGLE = "single"  # learns one game alone
RANDOM = "random"  # learns nothing: takes random actions, one game per part
ALONE = (SINGLE, RANDOM)  # have one game each
PROTECTED = tuple(name for name, arm in ARMS.items() if arm.protected)
