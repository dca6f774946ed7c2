"""The measurements of a run of games, as its figures and its table need them.

A network is tested on all its games before training and after every segment of its schedule, so
`tests[k]` comes after k segments. Scores in `normalized` are 0 for random and 1 for human play.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ewc_paper.figures.names import ARMS, in_order
from ewc_paper.runs.directory import Row, RunDirectory

HARDLY_LEARNED = 0.05  # a game whose normalised score rose by less has nothing to keep


@dataclass(frozen=True)
class Network:
    """One network of a run: how it learned, and what was measured."""

    path: Path
    arm: str
    seed: int
    games: list[str]
    schedule: list[str]
    settings: dict[str, Any]
    tests: list[Row]
    training: list[Row]


@dataclass(frozen=True)
class Return:
    """How a game is played just before it comes back, against how it was when it was left."""

    game: str
    kept: float | None  # fraction of what was gained since the start; None if nothing was
    agreement: float | None  # fraction of states in which the greedy action is the same
    regret: float | None  # value that the changed greedy actions cost, on average


def read(run: RunDirectory) -> list[Network]:
    """All networks of the run that have begun, by arm in the order of the options."""
    networks = [_read(part) for part in run.parts()]
    order = list(in_order(ARMS, run.config().get("arms", [])))
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


def together(networks: Sequence[Network]) -> dict[str, list[Network]]:
    """The networks that learn all games, by arm."""
    arms: dict[str, list[Network]] = defaultdict(list)
    for network in networks:
        if network.arm != "single":
            arms[network.arm].append(network)
    return dict(arms)


def total(test: Row) -> float:
    """The sum over games of the normalised score, clipped at 1 a game."""
    return sum(min(1.0, float(score)) for score in test["normalized"].values())


def totals(networks: Sequence[Network]) -> tuple[list[float], list[list[float]]]:
    """The steps of the tests that all networks have come to, and the total of each at them."""
    reached = min(len(network.tests) for network in networks)
    steps = np.mean([[test["step"] for test in one.tests[:reached]] for one in networks], axis=0)
    return steps.tolist(), [[total(test) for test in one.tests[:reached]] for one in networks]


def ceiling(networks: Sequence[Network], learner: Network) -> list[float] | None:
    """The totals of one network a game, each trained as long as `learner` has been on its game."""
    singles = {game: one.tests for game, one in _singles(networks, learner.seed).items()}
    values = []
    for done in range(len(learner.schedule) + 1):
        visits = Counter(learner.schedule[:done])
        scores = []
        for game in learner.games:
            if len(singles.get(game, [])) <= visits[game]:
                return None
            scores.append(singles[game][visits[game]]["normalized"][game])
        values.append(sum(min(1.0, score) for score in scores))
    return values


def gain(networks: Sequence[Network], learner: Network) -> float | None:
    """The sum over games of what was learned by the end, 1 being what a network of its own learned.

    None where such a network has not learned its game. Clipped at 1 a game, like the total. Where
    episodes are cut short a human's score is out of reach, and this tells more.
    """
    if len(learner.tests) <= len(learner.schedule):
        return None
    singles = _singles(networks, learner.seed)
    gains: list[float] = []
    for game in learner.games:
        single = singles.get(game)
        if single is None or len(single.tests) <= len(single.schedule):
            return None
        start, end = (single.tests[place]["normalized"][game] for place in (0, -1))
        if end - start < HARDLY_LEARNED:
            return None
        now = learner.tests[-1]["normalized"][game]
        gains.append(min(1.0, float(now - start) / (end - start)))
    return sum(gains)


def _singles(networks: Sequence[Network], seed: int) -> dict[str, Network]:
    """By game, the network of this seed that learned it alone."""
    return {one.games[0]: one for one in networks if one.arm == "single" and one.seed == seed}


def second_half(network: Network) -> float | None:
    """The mean total of the tests after segments of the second half: those of second visits."""
    later = [total(test) for test in network.tests if 2 * test["segment"] > len(network.schedule)]
    return float(np.mean(later)) if later else None


def returns(network: Network) -> list[Return]:
    """Every time that a game comes back after others were trained."""
    tests, found = network.tests, []
    for segment, game in enumerate(network.schedule[: len(tests)]):
        earlier = [place for place in range(segment) if network.schedule[place] == game]
        if not earlier or earlier[-1] == segment - 1:
            continue
        left, back = tests[earlier[-1] + 1], tests[segment]
        start, had, has = (test["normalized"][game] for test in (tests[0], left, back))
        kept = (has - start) / (had - start) if had - start >= HARDLY_LEARNED else None
        found.append(Return(game, kept, back["agreement"].get(game), back["regret"].get(game)))
    return found


def curve(network: Network, game: str) -> tuple[list[float], list[float]]:
    """Raw scores over steps in the game: after each of its segments, and just before it returns.

    Both have the same steps in the game, so what is forgotten in between is a vertical fall.
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
