"""What the experiments on games share: the options of the agent, and the config of one network."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

from ewc.step_size import How
from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Config
from ewc_paper.games.config import FisherKind, Settings
from ewc_paper.games.network import NETWORKS
from ewc_paper.games.replay import file_bytes
from ewc_paper.games.scores import normalized
from ewc_paper.games.worlds.minatar import MinAtar
from ewc_paper.options import MANY, option
from ewc_paper.runs.engine import Part
from ewc_paper.runs.loop import Resumable

SINGLE = "single"  # the arm that learns one game alone
REPLAY_FILES = "replay-*.rows"  # as the learner names them

# What the small worlds share: frames of 10x10, games of minutes, one network for all of them.
MINATAR: dict[str, Any] = {
    "history": 1,
    "environments": 8,
    "max_episode_steps": 2_500,
    "network": "minatar",
    "n_step": 3,
    "target_every": 1_000,
    "replay_capacity": 40_000,
    "min_history": 1_000,
    "optimizer": "adam",
    "lr": 1e-3,
    "fresh_optimizer": True,
    "epsilon": 0.02,
    "epsilon_start": 1_000,
    "epsilon_end": 6_000,
    "strength": 1.0,
    "floor": 0.1,
    "normalize": 100.0,
    "ewc_start": 0,
    "levels": 2,  # a cell is empty or not, and says more than a pixel of a picture
    "prior": 1.0,
    "wins": 3,
    "independent": 1e9,
    "report_every": 2_000,
}

# Real Atari in about an hour: small frames, a small network, and returns over several steps.
ATARI_SMALL: dict[str, Any] = {
    "size": 42,
    "environments": 8,
    "max_episode_steps": 1_500,
    "network": "small",
    "n_step": 6,
    "update_every": 2,
    "target_every": 1_000,
    "replay_capacity": 100_000,
    "min_history": 1_600,
    "optimizer": "adam",
    "lr": 2e-4,
    "adam_epsilon": 1e-5,  # with rare rewards the gradients are smaller than Rainbow's ε
    "average_span": 1_000,
    "fresh_optimizer": True,
    "epsilon": 0.05,
    "epsilon_start": 1_600,
    "epsilon_end": 8_000,
    "strength": 400.0,
    "normalize": 1_000.0,
    "leak": 0.3,
    "silence": True,
    "ewc_start": 8_000,  # not for a passing screen that the recogniser takes for a game
    "levels": 4,  # coarse and unsure, so that a game's second screen is not another game
    "prior": 4.0,
    "window": 8,  # one observation of each copy
    "wins": 3,
    "independent": 7.0,
    "test_epsilon": 0.05,  # a policy that never errs can stand before the same wall for ever
    "report_every": 2_000,
}


@dataclass(frozen=True, kw_only=True)
class Playing(Config):
    """Options of the agent; all times are agent steps, of four frames each on Atari."""

    size: int = option(Settings.size, "side of an Atari frame", low=36, high=210)
    history: int = option(Settings.history, "frames that make a state", low=1, high=64)
    environments: int = option(
        Settings.environments, "copies of a game played at once", low=1, high=1024
    )
    max_episode_steps: int = option(
        Settings.max_episode_steps, "steps after which an episode is cut off", low=1, high=MANY
    )

    network: str = option(Settings.network, "architecture", choices=tuple(NETWORKS))
    double: bool = option(Settings.double, "Double Q-learning")
    discount: float = option(Settings.discount, "discount factor γ a step", low=0, high=1)
    n_step: int = option(Settings.n_step, "steps of reward before the bootstrap", low=1, high=1000)
    batch_size: int = option(Settings.batch_size, "transitions a minibatch", low=1, high=10_000)
    update_every: int = option(Settings.update_every, "steps a minibatch", low=1, high=MANY)
    target_every: int = option(
        Settings.target_every, "steps an update of the target", low=1, high=MANY
    )
    replay_capacity: int = option(
        Settings.replay_capacity, "transitions kept a task", low=1, high=MANY
    )
    min_history: int = option(
        Settings.min_history, "transitions of a task before it is learned from", low=1, high=MANY
    )
    optimizer: str = option(Settings.optimizer, "optimizer", choices=("rmsprop", "adam"))
    lr: float = option(Settings.lr, "learning rate", low=1e-12, high=1e3)
    max_lr: float = option(
        Settings.max_lr, "maximum learning rate that RMSProp applies", low=1e-9, high=1e3
    )
    adam_epsilon: float = option(
        Settings.adam_epsilon, "ε of Adam, added to the root", low=1e-12, high=1e3
    )
    max_gradient_norm: float = option(
        Settings.max_gradient_norm, "norm that a larger gradient is scaled to", low=1e-9, high=1e12
    )
    average_span: int = option(
        Settings.average_span,
        "updates that parameters are averaged over when tested or left; 0: not at all",
        low=0,
        high=MANY,
    )
    fresh_optimizer: bool = option(
        Settings.fresh_optimizer, "forget the optimizer's moments when the task changes"
    )

    epsilon: float = option(
        Settings.epsilon, "exploration rate at the end of its decay", low=0, high=1
    )
    epsilon_start: int = option(
        Settings.epsilon_start, "steps in a task before its exploration decays", low=0, high=MANY
    )
    epsilon_end: int = option(
        Settings.epsilon_end, "steps in a task when its exploration has decayed", low=0, high=MANY
    )

    strength: float | None = option(
        Settings.strength, "λ of EWC; none takes the default of the Fisher's kind", low=0, high=1e12
    )
    fisher: str = option(Settings.fisher, "which Fisher", choices=get_args(FisherKind))
    fisher_batches: int = option(
        Settings.fisher_batches, "minibatches that a Fisher is taken over", low=1, high=MANY
    )
    floor: float = option(
        Settings.floor,
        "fraction of each layer's mean Fisher added to all its entries",
        low=0,
        high=1e6,
    )
    normalize: float | None = option(
        Settings.normalize, "trace that each task's Fisher is scaled to", low=1e-9, high=1e12
    )
    leak: float = option(
        Settings.leak, "slope that the Fisher sees in units where they are off", low=0, high=1
    )
    silence: bool = option(
        Settings.silence, "zero the gains of units that are dead on a task when it is left"
    )
    how: str = option(Settings.how, "how the pull is taken", choices=get_args(How))
    ewc_start: int = option(
        Settings.ewc_start, "steps in a task before it is protected", low=0, high=MANY
    )
    min_visit: int = option(
        Settings.min_visit, "steps in a task before its protection is renewed", low=0, high=MANY
    )

    levels: int = option(Settings.levels, "grey levels the recogniser tells apart", low=2, high=256)
    prior: float = option(
        Settings.prior, "Dirichlet mass a pixel of the recogniser", low=1e-9, high=1e9
    )
    window: int = option(
        Settings.window, "observations a window of the recogniser", low=1, high=MANY
    )
    wins: int = option(Settings.wins, "windows in a row that open a task", low=1, high=MANY)
    independent: float = option(
        Settings.independent,
        "independent pixels that a frame counts as in the recogniser",
        low=1e-9,
        high=1e12,
    )

    segment_steps: int = option(
        Settings.segment_steps, "steps a segment of the schedule", low=1, high=MANY
    )
    test_episodes: int = option(
        Settings.test_episodes, "episodes a game and test", low=1, high=1000
    )
    test_epsilon: float = option(Settings.test_epsilon, "exploration rate in tests", low=0, high=1)
    report_every: int = option(Settings.report_every, "steps a row of training", low=1, high=MANY)

    def check(self) -> None:
        super().check()
        if self.epsilon_end < self.epsilon_start:
            raise RunError(
                f"--epsilon-end must be at least --epsilon-start = {self.epsilon_start}, "
                f"got {self.epsilon_end}"
            )
        self._check_replay()

    @property
    def rows_a_segment(self) -> int:
        """Steps of each copy of a game in a segment."""
        return -(-self.segment_steps // self.environments)

    def _check_replay(self) -> None:
        """Refuse settings under which no transition is ever whole, or none is learned from."""
        rows = -(-self.replay_capacity // self.environments)
        limit = min(self.max_episode_steps, self.rows_a_segment, rows)
        if self.n_step >= limit:
            raise RunError(
                f"--n-step must be below {limit}, the steps of a copy in an episode "
                f"({self.max_episode_steps}), in a segment ({self.rows_a_segment}) and in the "
                f"replay memory ({rows}); got {self.n_step}"
            )
        held = (rows - self.n_step) * self.environments
        if self.min_history > held:
            raise RunError(
                f"--min-history must be at most {held}, the transitions that --replay-capacity "
                f"= {self.replay_capacity} holds; got {self.min_history}"
            )

    def part_config(
        self, arm: str, seed: int, games: Sequence[str], schedule: Sequence[str]
    ) -> dict[str, Any]:
        """One network: how it learns, the games it is tested on, and those it is trained on."""
        return {
            "arm": arm,
            "seed": seed,
            "games": list(games),
            "schedule": list(schedule),
            "settings": {one.name: getattr(self, one.name) for one in fields(Settings)},
        }


def file_name(game: str) -> str:
    """The game's name as a part of file names."""
    return game.replace("/", "-").replace(":", "-")


def check_game(game: str, flag: str) -> None:
    """Refuse a game that there is no score to compare with."""
    try:
        normalized(game, 0.0)
    except ValueError as error:
        raise RunError(f"{flag}: {error}") from None


def check_one_world(games: Sequence[str]) -> None:
    """Refuse to mix Atari with MinAtar, whose frames and actions are others."""
    minatar = [game for game in games if game.startswith("minatar/")]
    if 0 < len(minatar) < len(games):
        raise RunError(f"--games must be all of Atari or all of MinAtar, got {' '.join(games)}")


def make_part(
    name: str, config: dict[str, Any], make: Callable[[dict[str, Any]], Resumable]
) -> Part:
    """One network of a run, with what its replay memories take on disk while it runs."""
    return Part(
        name,
        config,
        make,
        disk_bytes=replay_bytes(config),
        disk_advice="a smaller --replay-capacity",
        temporary_files=(REPLAY_FILES,),
    )


def replay_bytes(config: dict[str, Any]) -> int:
    """What the replay memories of one network take on disk, one for each game it is trained on."""
    settings = config["settings"]
    copies = settings["environments"]
    rows_a_segment = -(-settings["segment_steps"] // copies)
    return sum(
        file_bytes(
            settings["replay_capacity"],
            copies,
            _frame_shape(game, settings["size"]),
            visits * rows_a_segment,
        )
        for game, visits in Counter(config["schedule"]).items()
    )


def _frame_shape(game: str, size: int) -> tuple[int, int, int]:
    return MinAtar.frame_shape if game.startswith("minatar/") else (1, size, size)
