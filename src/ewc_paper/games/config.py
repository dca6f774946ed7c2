"""Every number of the agent, in one place; the defaults are the paper's.

All times are agent steps: one step is one decision, which lasts four frames of the emulator.

Where the paper's appendix contradicts itself or leaves something open, it is settled here:

1. Replay memory: the text has 5e5 experiences, the table 5e4. We take the text's 5e5: with the
   table's 5e4 the "min. history" of 5e4 would be the whole memory.
2. Target network: the text updates it every 3e4 "time steps", the table every 7,500 steps. These
   agree if the text counts frames (30,000 / 4), so we take 7,500 steps. Exploration is likewise
   counted in frames by the table: it starts to fall after 50,000 frames and ends after 1,050,000.
3. Initial weights: uniform within ±σ, "σ set to the square root of the incoming hidden units" can
   only be one over that root; for a convolution the incoming units are kernel area x filters.
4. Switch matrix Γ of the recogniser: its rows sum to one for two contexts only; we share the
   switch probability evenly among the others (see `recognition`).
5. "Maximum learning rate" 2.5e-3: RMSProp's step is rate / √(v + ε²) with ε = rate / maximum.
6. The Fisher is not specified for a Q-network. `fisher` chooses; each has a default strength.
"""

from dataclasses import dataclass
from typing import Literal

from ewc.step_size import How

FisherKind = Literal["gaussian", "td", "td-minibatch"]

# λ where none is given. The paper's 400 fits the squared minibatch gradient, the smallest of them.
STRENGTHS: dict[str, float] = {"gaussian": 1.0, "td": 10.0, "td-minibatch": 400.0}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The agent, its training, its memory of tasks, its task recognition and its tests."""

    # what it sees and acts on
    size: int = 84  # side of an Atari frame
    history: int = 4  # frames that make a state
    environments: int = 4  # copies of the game played at once
    max_episode_steps: int = 27_000

    # network and Q-learning
    network: str = "paper"  # a key of network.NETWORKS
    double: bool = True
    discount: float = 0.99
    n_step: int = 1
    batch_size: int = 32
    update_every: int = 4  # steps a minibatch
    target_every: int = 7_500
    replay_capacity: int = 500_000  # transitions a task
    min_history: int = 50_000  # transitions before a task is learned from
    optimizer: str = "rmsprop"
    lr: float = 2.5e-4
    max_lr: float = 2.5e-3  # of rmsprop
    adam_epsilon: float = 1.5e-4  # Rainbow's: larger than the moments of units that are dead
    max_gradient_norm: float = 50.0
    average_span: int = 0  # updates that the parameters of a test are averaged over; 0: the last
    fresh_optimizer: bool = False  # forget the optimizer's moments when the task changes

    # exploration, on each task's own timer
    epsilon: float = 0.01  # where it ends
    epsilon_start: int = 12_500
    epsilon_end: int = 262_500

    # elastic weight consolidation
    strength: float | None = None  # λ; None takes the default of the Fisher's kind
    fisher: FisherKind = "gaussian"
    fisher_batches: int = 100
    floor: float = 0.0  # fraction of each layer's mean Fisher added everywhere
    normalize: float | None = None  # scale each task's Fisher to this trace
    leak: float = 0.0  # slope that the Fisher sees in units where they are off
    silence: bool = False  # zero a task's gains of the units that are dead on it
    how: How = "proximal"
    ewc_start: int = 5_000_000  # steps in a task before its well is dug
    min_visit: int = 1_000  # steps since it was dug before it is dug anew: not for a passing doubt

    # task recognition
    levels: int = 8  # grey levels a pixel is rounded to
    prior: float = 1.0  # Dirichlet mass a pixel
    window: int = 4  # observations a window
    wins: int = 2  # windows in a row that open a task
    independent: float = 15.0  # pixels that a frame counts as

    # schedule and tests
    segment_steps: int = 1_000_000
    test_episodes: int = 20
    test_epsilon: float = 0.01
    report_every: int = 10_000

    @property
    def resolved_strength(self) -> float:
        return STRENGTHS[self.fisher] if self.strength is None else self.strength
