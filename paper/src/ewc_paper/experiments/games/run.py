"""Games one after another, in one network (the paper's figure on Atari, panels A and B)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np

from ewc_paper.errors import RunError
from ewc_paper.experiments.experiment import Presets
from ewc_paper.experiments.games.data import continual_networks, read_networks, total
from ewc_paper.experiments.playing import (
    ATARI_SMALL,
    ATARI_SMALL_TASKS,
    MINATAR,
    MINATAR_TASKS,
    Playing,
    check_game,
    check_one_world,
    make_part,
)
from ewc_paper.games.config import ALONE, ARMS, PAPERS, PAPERS_LEVELS, RANDOM, AgentConfig
from ewc_paper.games.evaluation import make_random
from ewc_paper.games.schedule import DRAWN, GIVEN, ORDERS, schedule_of
from ewc_paper.games.training import make_continual
from ewc_paper.games.worlds.game import file_name
from ewc_paper.options import option
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Part
from ewc_paper.seeding import derive_seed

# The paper draws from the 19 games "for which the standalone DQN could reach human-level
# performance in 50 million frames" and does not name them. Twenty games are at the human score or
# above in all of three published tables from no-op starts: DQN of Mnih et al. 2015, and DQN and
# Double DQN as in Wang et al. 2016 and Bellemare et al. 2017. We leave out Tennis, where a player
# that never serves scores 0 and so beats the human's -8.3 without playing.
POOL = (
    "Assault",
    "Atlantis",
    "Boxing",
    "Breakout",
    "CrazyClimber",
    "DemonAttack",
    "FishingDerby",
    "Freeway",
    "Gopher",
    "Jamesbond",
    "Kangaroo",
    "Krull",
    "KungFuMaster",
    "Pong",
    "RoadRunner",
    "Robotank",
    "SpaceInvaders",
    "StarGunner",
    "VideoPinball",
)
# Games in which 20,000 to 30,000 steps alone are enough to be clearly above a random player, by
# pilots with other seeds (docs/experiments/appendix/games-pilots.md).
TEN = (
    "Alien",
    "Amidar",
    "CrazyClimber",
    "Frostbite",
    "Jamesbond",
    "Kangaroo",
    "Krull",
    "MsPacman",
    "RoadRunner",
    "UpNDown",
)
# Those of the sequential challenge, in its order.
EIGHT = (
    "MsPacman",
    "Centipede",
    "Qbert",
    "Defender",
    "Krull",
    "Atlantis",
    "UpNDown",
    "BattleZone",
)
GATED = ("plain", "ewc-gates-labels", "ewc-gates-fmn", "single", "random")  # in small networks
WITH_GATES_ALONE = ("gates", *GATED)  # which says how much of it is EWC
# The paper's own mechanism, one shared network with gains and biases of each game's own.
WITHOUT_GATES = ("plain", "ewc-labels", "ewc-kronecker-labels", "ewc-kronecker", "single", "random")
# Without labels, beside what is told the game or plays it alone.
UNLABELLED = (
    *("plain", "plain-unlabelled", "ewc-fmn", "ewc-gates-fmn", "ewc-kronecker"),
    *("single", "random"),
)

# Breakout and Space Invaders, each as it is and rotated with permuted actions and channels.
FOUR: dict[str, Any] = {
    "games": (
        "minatar/breakout",
        "minatar/space_invaders:rotate90,actions1,channels1",
        "minatar/breakout:rotate180,actions2,channels2",
        "minatar/space_invaders",
    ),
    "segment_steps": 20_000,
    "seeds": 3,
}
# Tests on ten games would take longer than training, so there are fewer episodes.
TEN_SMALL: dict[str, Any] = {
    "games": TEN,
    "segment_steps": 30_000,
    "test_episodes": 4,
    "table_episodes": 20,
}


@dataclass(frozen=True, kw_only=True)
class Games(Playing, AgentConfig):
    """The options, the networks to train and the score."""

    presets: ClassVar[Presets] = {
        "quick": {
            **MINATAR,
            **MINATAR_TASKS,
            "arms": GATED,
            "games": ("minatar/breakout", "minatar/space_invaders:rotate90"),
            "segment_steps": 5_000,
            "epsilon_end": 3_000,
            "report_every": 1_000,
        },
        "laptop": {
            **MINATAR,
            **MINATAR_TASKS,
            **FOUR,
            "arms": WITH_GATES_ALONE,
            "network": "minatar-pool",  # of which each task uses 20 filters and 231 units
            "gates": 0.7,
            "filter_gates": 0.6,
        },
        "laptop-kronecker": {
            **MINATAR,
            **MINATAR_TASKS,
            **FOUR,
            "arms": WITHOUT_GATES,
        },
        "atari-small": {
            **ATARI_SMALL,
            **ATARI_SMALL_TASKS,
            "arms": WITH_GATES_ALONE,
            "games": ("RoadRunner", "Krull", "UpNDown"),
            "segment_steps": 60_000,
            "seeds": 2,
        },
        # The paper's figure on a small scale. More games share the network, so each has less of it.
        "atari-ten": {
            **ATARI_SMALL,
            **ATARI_SMALL_TASKS,
            **TEN_SMALL,
            "arms": WITH_GATES_ALONE,
            "gates": 0.7,
            "filter_gates": 0.6,
            "strength": 10.0,
        },
        "atari-ten-kronecker": {
            **ATARI_SMALL,
            **ATARI_SMALL_TASKS,
            **TEN_SMALL,
            "arms": WITHOUT_GATES,
            "strength": 10.0,
            "kronecker_strength": 1.0,
            "seeds": 2,
        },
        # A challenge of 2025 that has no published answer: cycles through eight games with sticky
        # actions and no labels; what counts are the scores while learning in the last cycle.
        "sequential": {
            **ATARI_SMALL,
            **ATARI_SMALL_TASKS,
            "arms": UNLABELLED,
            "games": EIGHT,
            "order": GIVEN,
            "visits": 3,
            "segment_steps": 100_000,
            "sticky": 0.25,
            "max_episode_steps": 27_000,
            "gates": 0.7,
            "filter_gates": 0.6,
            "strength": 10.0,
            "kronecker_strength": 1.0,
            "test_episodes": 1,
            "table_episodes": 5,
        },
        # Ten segments of 5 million frames per game: 50 million, what the pool is chosen by.
        "paper": {
            "levels": PAPERS_LEVELS,
            "games": POOL,
            "games_a_set": 10,
            "sets": 10,
            "seeds": 4,
            "visits": 10,
            "segment_steps": 1_250_000,
        },
    }

    games: tuple[str, ...] = option(
        ("minatar/breakout", "minatar/space_invaders"),
        "games to learn, or to draw the sets from",
        common=True,
    )
    games_a_set: int | None = option(
        None, "games drawn per set; all of them if not given", low=2, high=1000
    )
    sets: int = option(1, "number of sets of games", low=1, high=1000)
    visits: int = option(2, "segments per game", low=1, high=10_000, common=True)
    order: str = option(
        DRAWN, "order of the games in each round: drawn anew, or as given", choices=ORDERS
    )
    arms: tuple[str, ...] = option(
        PAPERS,
        "what is compared: plain training; EWC told the game (labels) or recognizing it, with the "
        "diagonal or Kronecker factors, with or without gates; gates alone; one network per game; "
        "a random player",
        choices=tuple(ARMS),
        common=True,
    )

    def check(self) -> None:
        super().check()
        for game in self.games:
            check_game(game, "--games")
        check_one_world(self.games)
        if len(self.games) < (self.games_a_set or 2):
            raise RunError(
                f"--games must name at least {self.games_a_set or 2} games, got {len(self.games)}"
            )
        recognizes = any(ARMS[arm].recognizes for arm in self.arms)
        has_windows = recognizes and self.recognizer == "forget-me-not"
        if has_windows and self.window > self.rows_per_segment:
            raise RunError(
                f"--window must be at most {self.rows_per_segment}, the observations of a segment, "
                f"for arms that recognize games; got {self.window}"
            )

    score_means = "total normalized score in the last test, of the networks that learn all games"

    def score(self, run: RunDirectory) -> float | None:
        networks = read_networks(run)
        learners = [
            network for of_arm in continual_networks(networks).values() for network in of_arm
        ]
        totals = [total(network.tests[-1]) for network in learners or networks]
        return float(np.mean(totals)) if totals else None

    def _parts(self) -> Iterator[Part]:
        sets = [self._drawn(number) for number in range(self.sets)]
        together = [arm for arm in self.arms if arm not in ALONE]
        for number, games in enumerate(sets):
            label = f"set{number}-" if self.sets > 1 else ""
            for seed in self.all_seeds:
                drawn_by = derive_seed(seed, "schedule", number)
                schedule = schedule_of(games, self.visits, self.order, drawn_by)
                for arm in together:
                    yield self._part(f"{arm}-{label}seed{seed}", arm, seed, games, schedule)
        drawn = sorted({game for games in sets for game in games}, key=self.games.index)
        for arm in (arm for arm in ALONE if arm in self.arms):
            visits = 0 if arm == RANDOM else self.visits
            for game, seed in product(drawn, self.all_seeds):
                name = f"{arm}-{file_name(game)}-seed{seed}"
                yield self._part(name, arm, seed, [game], [game] * visits)

    def _drawn(self, number: int) -> list[str]:
        """The games of a set, in the order of the pool."""
        if self.games_a_set is None:
            return list(self.games)
        random = np.random.default_rng(derive_seed(self.seed, "set", number))
        drawn = random.choice(len(self.games), self.games_a_set, replace=False)
        return [self.games[index] for index in sorted(drawn)]

    def _part(
        self, name: str, arm: str, seed: int, games: Sequence[str], schedule: Sequence[str]
    ) -> Part:
        config = self.part_config(arm, seed, games, schedule)
        return make_part(name, config, make_random if arm == RANDOM else make_continual)
