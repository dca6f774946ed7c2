"""Every number of the agent, in one place, and the arms that the experiments on games compare.

Most defaults are the paper's; docs/games.md lists where they deviate.

Each group of options is a dataclass; `AgentConfig` is all of them, and an experiment inherits the
groups that it uses.

All times are agent steps: one step is one decision, which lasts four frames of the emulator.

Where the paper's appendix contradicts itself or leaves something open, it is settled here:

1. Replay memory: the text has 5e5 experiences, the table 5e4. We take the text's 5e5: with the
   table's 5e4 the "min. history" of 5e4 would be the whole memory.
2. Target network: the text updates it every 3e4 "time steps", the table every 7,500 steps. These
   agree if the text counts frames (30,000 / 4), so we take 7,500 steps. Exploration is likewise
   counted in frames by the table: it starts to decay after 50,000 frames and ends after 1,050,000.
3. Initial weights: uniform within ±σ, "σ set to the square root of the incoming hidden units" can
   only be one over that root; for a convolution the incoming units are kernel area x filters.
4. Switch matrix Γ of the recognizer: its rows sum to one for two contexts only; we share the
   switch probability evenly among the others (see `ewc.recognition`).
5. "Maximum learning rate" 2.5e-3: RMSProp's step is rate / √(v + ε²) with ε = rate / maximum.
6. The Fisher is not specified for a Q-network. We take that of a Gaussian around Q, summed over
   actions. The paper's λ of 400 belongs to another scale; 1 is our choice.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ewc.memory import Curvature
from ewc.step_size import How
from ewc_paper.games.network import NETWORKS
from ewc_paper.options import option, values_of

OptimizerName = Literal["rmsprop", "adam"]
RecognizerName = Literal["forget-me-not", "screens"]


@dataclass(frozen=True, kw_only=True)
class WorldConfig:
    """The games that are played."""

    size: int = option(84, "side of an Atari frame, in pixels", low=36, high=210)
    environments: int = option(4, "copies of a game played at once", low=1, high=1024)
    max_episode_steps: int = option(27_000, "steps after which an episode is cut off", low=1)
    sticky: float = option(
        0.0, "probability that a frame of Atari takes the last action again", low=0, high=1
    )


@dataclass(frozen=True, kw_only=True)
class QLearningConfig:
    """The network and Q-learning."""

    network: str = option("paper", "architecture", choices=tuple(NETWORKS), common=True)
    history: int = option(4, "frames per state", low=1, high=64)
    double: bool = option(True, "Double Q-learning")
    discount: float = option(0.99, "discount factor γ per step", low=0, high=1)
    n_step: int = option(1, "steps of reward before the bootstrap", low=1, high=1000)
    batch_size: int = option(32, "transitions per minibatch", low=1, high=10_000)
    update_every: int = option(4, "steps per minibatch", low=1)
    target_every: int = option(7_500, "steps per update of the target network", low=1)
    replay_capacity: int = option(500_000, "transitions kept per task", low=1, common=True)
    min_history: int = option(50_000, "transitions of a task before it is learned from", low=1)
    optimizer: OptimizerName = option("rmsprop", "optimizer", choices=get_args(OptimizerName))
    lr: float = option(2.5e-4, "learning rate", low=1e-12, high=1e3, common=True)
    max_lr: float = option(2.5e-3, "maximum learning rate of RMSProp", low=1e-9, high=1e3)
    adam_epsilon: float = option(  # Rainbow's: larger than the moments of units that are dead
        1.5e-4, "ε of Adam, added to the square root", low=1e-12, high=1e3
    )
    max_gradient_norm: float = option(
        50.0, "norm that a larger gradient is scaled to", low=1e-9, high=1e12
    )
    average_span: int = option(
        0, "updates that the tested parameters are averaged over; 0: the last alone", low=0
    )


@dataclass(frozen=True, kw_only=True)
class ExplorationConfig:
    """Exploration, which decays separately for each task."""

    epsilon: float = option(0.01, "exploration rate at the end of its decay", low=0, high=1)
    epsilon_start: int = option(12_500, "steps in a task before its exploration decays", low=0)
    epsilon_end: int = option(262_500, "steps in a task when its exploration has decayed", low=0)


@dataclass(frozen=True, kw_only=True)
class QFisherConfig:
    """The Fisher of the Q-network."""

    fisher_batches: int = option(100, "minibatches per Fisher", low=1)


@dataclass(frozen=True, kw_only=True)
class ConsolidationConfig:
    """Elastic weight consolidation, when the task changes."""

    how: How = option("proximal", "how the pull is computed", choices=get_args(How))
    ewc_start: int = option(5_000_000, "steps in a task before it is protected", low=0)
    min_visit: int = option(  # so that a task the recognizer mistook for another stays as it was
        1_000, "steps in a task before its protection is renewed", low=0
    )


@dataclass(frozen=True, kw_only=True)
class DiagonalConfig:
    """Wells with one number per weight, the diagonal of the Fisher."""

    strength: float = option(1.0, "λ of EWC", low=0, common=True)
    floor: float = option(
        0.0, "fraction of each layer's mean Fisher added to all its entries", low=0, high=1e6
    )
    normalize: float | None = option(
        None, "trace that each task's Fisher is scaled to", low=1e-9, high=1e12
    )


@dataclass(frozen=True, kw_only=True)
class KroneckerConfig:
    """Wells with two matrices per layer, in the arms called `kronecker`."""

    kronecker_strength: float = option(
        0.1, "λ of EWC with Kronecker factors, which keep the scale of the Fisher", low=0
    )


@dataclass(frozen=True, kw_only=True)
class TaskChangeConfig:
    """What every agent does when the task changes, protected or not."""

    fresh_optimizer: bool = option(False, "reset the optimizer's moments when the task changes")


@dataclass(frozen=True, kw_only=True)
class GatingConfig:
    """Gates: units that a context does without, in the arms that have them."""

    gates: float = option(
        0.5, "fraction of the hidden units that a context does without", low=0, high=0.99
    )
    filter_gates: float = option(
        0.0, "the same for the filters of each convolution", low=0, high=0.99
    )


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The schedule of games."""

    segment_steps: int = option(1_000_000, "steps per segment of the schedule", low=1, common=True)


@dataclass(frozen=True, kw_only=True)
class MeasurementConfig:
    """Tests and reports."""

    test_episodes: int = option(
        10, "episodes per game and test on the way", low=1, high=1000, common=True
    )
    table_episodes: int = option(
        30,
        "episodes where a table needs them: of a game just left or about to return, and at the end",
        low=1,
        high=1000,
        common=True,
    )
    test_epsilon: float = option(0.01, "exploration rate in tests", low=0, high=1)
    report_every: int = option(10_000, "steps per row of training statistics", low=1)


@dataclass(frozen=True, kw_only=True)
class RecognitionConfig:
    """How games are recognized."""

    recognizer: RecognizerName = option(
        "forget-me-not",
        "how the game is recognized: as in the paper, or with games as sets of screens, which "
        "takes --levels, --side and --usual alone",
        choices=get_args(RecognizerName),
    )
    usual: float = option(
        0.0,
        "share of what a screen usually saves that it must save to explain a frame",
        low=0,
        high=1,
    )
    levels: int = option(
        16, "number of brightness levels that a pixel is rounded to", low=2, high=256
    )
    side: int = option(
        42, "larger frames are averaged down to at most this height and width", low=1
    )
    prior: float = option(1.0, "mass of the Dirichlet prior per pixel", low=1e-12, high=1e12)
    window: int = option(4, "observations per window", low=1)


# Gray levels for the paper's games, which the paper does not give.
PAPERS_LEVELS = 8


@dataclass(frozen=True, kw_only=True)
class AgentConfig(
    WorldConfig,
    QLearningConfig,
    ExplorationConfig,
    QFisherConfig,
    ConsolidationConfig,
    DiagonalConfig,
    KroneckerConfig,
    TaskChangeConfig,
    GatingConfig,
    RecognitionConfig,
    ScheduleConfig,
    MeasurementConfig,
):
    """An agent that learns games one after another: all groups together."""


@dataclass(frozen=True)
class Arm:
    """What sets an arm apart; the training loop is the same for all, and the parts combine."""

    title: str  # in tables and figures
    wells: Curvature | None = None  # what EWC remembers a task as; None: it is not protected
    gated: bool = False  # each task does without some of the units
    recognizes: bool = False  # works out the task from the frames, instead of being told
    labelled: bool = True  # is told the task unless it recognizes it; if not, all are one to it

    @property
    def protected(self) -> bool:
        """Whether EWC protects its tasks."""
        return self.wells is not None


ARMS = {
    "plain": Arm("plain training"),
    "plain-unlabelled": Arm("plain training, not told the game", labelled=False),
    "ewc-labels": Arm("EWC, told the game", "diagonal"),
    "ewc-fmn": Arm("EWC, recognizes it", "diagonal", recognizes=True),
    "ewc-kronecker-labels": Arm("EWC, Kronecker, told the game", "kronecker"),
    "ewc-kronecker": Arm("EWC, Kronecker, recognizes it", "kronecker", recognizes=True),
    "gates": Arm("gates alone, told the game", gated=True),
    "ewc-gates-labels": Arm("EWC + gates, told the game", "diagonal", gated=True),
    "ewc-gates-fmn": Arm("EWC + gates, recognizes it", "diagonal", gated=True, recognizes=True),
    "ewc-kronecker-gates-labels": Arm(
        "EWC, Kronecker + gates, told the game", "kronecker", gated=True
    ),
    "ewc-kronecker-gates": Arm(
        "EWC, Kronecker + gates, recognizes it", "kronecker", gated=True, recognizes=True
    ),
    "single": Arm("one network per game"),
    "random": Arm("random player"),
}
PAPERS = ("plain", "ewc-labels", "ewc-fmn", "single", "random")  # what the paper compares
SINGLE = "single"  # learns one game alone
RANDOM = "random"  # learns nothing: takes random actions, one game per part
ALONE = (SINGLE, RANDOM)  # have one game each
PROTECTED = tuple(name for name, arm in ARMS.items() if arm.protected)


def settings_of(arm: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that an arm uses; those of all others are their defaults.

    So the networks of arms without EWC are the same in runs with other strengths, and can be taken
    over from one to the other.
    """
    has = ARMS[arm]
    groups = {
        ConsolidationConfig: has.protected,
        DiagonalConfig: has.wells == "diagonal",
        KroneckerConfig: has.wells == "kronecker",
        GatingConfig: has.gated,
        RecognitionConfig: has.recognizes,
    }
    unused = {
        name for group, used in groups.items() if not used for name in values_of(group, options)
    }
    used = values_of(AgentConfig, options)
    return {name: value for name, value in used.items() if name not in unused}
