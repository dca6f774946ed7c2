"""The measurements of a run of games, as its figures and its table need them.

A network is tested on all its games before training and after each segment of its schedule, so
`tests[k]` was measured after k segments. A normalized score is 0 for a random player and 1 for the
reference (`games.scores`). Skill, which the run measures itself, is in `skill`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ewc_paper.figures.names import ARM_LABELS, in_order
from ewc_paper.games.arms import ALONE
from ewc_paper.runs.directory import MetricsRow, RunDirectory

# When a game is looked at: after its first visit, before its second one, and after all segments.
MOMENTS = FIRST, BEFORE_SECOND, END = "first visit", "before 2nd", "at the end"


@dataclass(frozen=True)
class Network:
    """One network of a run: how it was trained, and what was measured."""

    path: Path
    arm: str
    seed: int
    games: list[str]
    schedule: list[str]
    settings: dict[str, Any]
    tests: list[MetricsRow]
    training: list[MetricsRow]

    @property
    def seed_name(self) -> str:
        """The seed as a label, with the set of games if there are several."""
        games = re.search(r"-set(\d+)-seed", self.path.name)
        return f"set {games.group(1)}, seed {self.seed}" if games else f"seed {self.seed}"

    @property
    def finished(self) -> bool:
        """Whether it was tested after the last segment."""
        return len(self.tests) > len(self.schedule)


@dataclass(frozen=True)
class Revisit:
    """How a game is played just before it is trained again, compared with when it was last left."""

    game: str
    left: int  # number of the test after it was left
    back: int  # number of the test before it is trained again
    agreement: float | None  # fraction of states in which the greedy action is the same
    regret: float | None  # mean stored value lost by the greedy actions that have changed


def read_networks(run: RunDirectory) -> list[Network]:
    """Read all networks that have started, sorted by arm in the order of the options."""
    networks = [_read(part) for part in run.parts()]
    order = list(in_order(ARM_LABELS, run.config().get("arms", [])))
    return sorted((one for one in networks if one.tests), key=lambda one: order.index(one.arm))


def _read(part: RunDirectory) -> Network:
    config, rows = part.config(), part.rows()
    names = ("arm", "seed", "games", "schedule", "settings")
    return Network(
        path=part.path,
        **{name: config[name] for name in names},
        tests=[row for row in rows if row["kind"] == "test"],
        training=[row for row in rows if row["kind"] == "train"],
    )


def arms_of(networks: Iterable[Network]) -> list[str]:
    """Return the arms in the order of the networks, which is that of the options."""
    return list(dict.fromkeys(network.arm for network in networks))


def continual_networks(networks: Sequence[Network]) -> dict[str, list[Network]]:
    """Return the networks that learn all games one after another, by arm."""
    arms: dict[str, list[Network]] = defaultdict(list)
    for network in networks:
        if network.arm not in ALONE:
            arms[network.arm].append(network)
    return dict(arms)


def clipped_total(scores: Iterable[float]) -> float:
    """Sum normalized scores or skills, one per game, each clipped at 1 from above."""
    return sum(min(1.0, float(score)) for score in scores)


def total(test: MetricsRow) -> float:
    """Return the clipped total of a test."""
    return clipped_total(test["normalized"].values())


def curves(
    networks: Sequence[Network], measure: Callable[[Network, int], float]
) -> tuple[list[float], dict[str, list[float]]]:
    """Return the agent steps of the tests that all networks have reached, and a measure by seed.

    Args:
        networks: the networks of an arm.
        measure: takes a network and the number of a test.
    """
    reached = min(len(network.tests) for network in networks)
    steps = np.mean([[test["step"] for test in one.tests[:reached]] for one in networks], axis=0)
    values = {one.seed_name: [measure(one, at) for at in range(reached)] for one in networks}
    return steps.tolist(), values


def ceiling(networks: Sequence[Network], learner: Network) -> list[float] | None:
    """Return the totals of one network per game, after each segment of the learner's schedule.

    Each network is taken when it has been trained on its game for as long as the learner. None if
    one of them has not come that far.
    """
    singles = {game: one.tests for game, one in _single_networks(networks, learner.seed).items()}
    totals = []
    for done in range(len(learner.schedule) + 1):
        visits = Counter(learner.schedule[:done])
        scores = []
        for game in learner.games:
            if len(singles.get(game, [])) <= visits[game]:
                return None
            scores.append(singles[game][visits[game]]["normalized"][game])
        totals.append(clipped_total(scores))
    return totals


def _single_networks(networks: Sequence[Network], seed: int) -> dict[str, Network]:
    """Return the networks of this seed that learned one game alone, by game."""
    return {one.games[0]: one for one in networks if one.arm == "single" and one.seed == seed}


def second_half_total(network: Network) -> float | None:
    """Return the mean total of the tests after segments in the second half of the schedule."""
    later = [total(network.tests[test]) for test in later_tests(network)]
    return float(np.mean(later)) if later else None


def later_tests(network: Network) -> list[int]:
    """Return the numbers of the tests after segments in the second half of the schedule."""
    return [test for test in range(len(network.tests)) if 2 * test > len(network.schedule)]


def revisits(network: Network) -> list[Revisit]:
    """Return every time that a game is trained again after others were trained in between."""
    tests, found = network.tests, []
    for segment, game in enumerate(network.schedule[: len(tests)]):
        earlier = [place for place in range(segment) if network.schedule[place] == game]
        if not earlier or earlier[-1] == segment - 1:
            continue
        agreement, regret = (tests[segment][name].get(game) for name in ("agreement", "regret"))
        found.append(Revisit(game, earlier[-1] + 1, segment, agreement, regret))
    return found


def moments(network: Network, game: str) -> dict[str, int]:
    """Return the number of the test at each of `MOMENTS`, without those that were not reached."""
    visits = [segment for segment, trained in enumerate(network.schedule) if trained == game]
    tests = {
        FIRST: [visit + 1 for visit in visits[:1]],
        BEFORE_SECOND: visits[1:2],
        END: [len(network.schedule)],
    }
    return {name: test for name in MOMENTS for test in tests[name] if test < len(network.tests)}


def score_curve(network: Network, game: str) -> tuple[list[float], list[float]]:
    """Return raw scores over the agent steps in a game.

    There is one after each segment of the game, and one just before it is trained again. Both have
    the same number of steps in the game, so what was forgotten in between is a vertical drop.
    """
    scores: dict[float, list[float]] = defaultdict(list)
    for test in network.tests:
        scores[test["steps_in"].get(game, 0)].append(float(np.mean(test["scores"][game])))
    steps, values = [], []
    for at, measured in scores.items():
        ends = [measured[0], measured[-1]] if at else measured[-1:]
        steps += [at] * len(ends)
        values += ends
    return steps, values
