"""What a run of games has measured, as its figures and its tables need it.

A network is tested on all its games before training and after each segment of its schedule, so
`tests[k]` was measured after k segments. A normalized score is 0 for a random player and 1 for the
reference (`games.scores`).

Skill is how good a score is between a random player and a network of the game's own:

    skill = (score − random) / (single − random)

`random` is the mean of all episodes of the random players of the game. `single` is the network of
the same seed that learned this game alone, after as many visits to it. Both are measured in the
same run under the same rules, so skill is 0 for a player that learned nothing and 1 for one that
lost nothing to the other games. Where `single` is not clearly above `random` there is nothing to
divide by: skill is None, the game is left out, and tables say how often.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ewc_paper.experiments.playing import ContextMatch, ContextUse, match_contexts
from ewc_paper.figures.names import ARM_LABELS, in_order
from ewc_paper.games.config import ALONE, RANDOM, SINGLE
from ewc_paper.runs.directory import MetricsRow, RunDirectory

# When a game is looked at: after its first visit, before its second one, and after all segments.
MOMENTS = FIRST, BEFORE_SECOND, END = "first visit", "before second", "at the end"


CLEAR_ERRORS = 2.0  # `single − random` must be at least so many of its standard errors
MIN_LEFT = 0.25  # with less skill when it was left, a game has nothing to keep

Skills = dict[str, float | None]  # by game; None where skill is undefined


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
    return sorted(
        (network for network in networks if network.tests),
        key=lambda network: order.index(network.arm),
    )


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
    steps = np.mean(
        [[test["step"] for test in network.tests[:reached]] for network in networks], axis=0
    )
    values = {
        network.seed_name: [measure(network, at) for at in range(reached)] for network in networks
    }
    return steps.tolist(), values


def ceiling(networks: Sequence[Network], learner: Network) -> list[float] | None:
    """Return the totals of one network per game, after each segment of the learner's schedule.

    Each network is taken when it has been trained on its game for as long as the learner. None if
    one of them has not come that far.
    """
    singles = {
        game: network.tests for game, network in _single_networks(networks, learner.seed).items()
    }
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
    return {
        network.games[0]: network
        for network in networks
        if network.arm == "single" and network.seed == seed
    }


def second_half_total(network: Network) -> float | None:
    """Return the mean total of the tests after segments in the second half of the schedule."""
    later = [total(network.tests[test]) for test in later_tests(network)]
    return float(np.mean(later)) if later else None


def later_tests(network: Network) -> list[int]:
    """Return the numbers of the tests after segments in the second half of the schedule."""
    return [test for test in range(len(network.tests)) if 2 * test > len(network.schedule)]


def revisits(network: Network) -> list[Revisit]:
    """Return every time that a game is trained again after others were trained in between."""
    tests, returns = network.tests, []
    for segment, game in enumerate(network.schedule[: len(tests)]):
        earlier = [place for place in range(segment) if network.schedule[place] == game]
        if not earlier or earlier[-1] == segment - 1:
            continue
        agreement, regret = (tests[segment][name].get(game) for name in ("agreement", "regret"))
        returns.append(Revisit(game, earlier[-1] + 1, segment, agreement, regret))
    return returns


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


class Estimate(NamedTuple):
    """A mean and its standard error, which is infinite for a single value."""

    mean: float
    error: float


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of several scores."""
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.inf
    return Estimate(float(np.mean(values)), float(error))


def average(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of several independent means, each with the same weight."""
    means, errors = zip(*estimates, strict=True)
    return Estimate(float(np.mean(means)), float(np.linalg.norm(errors)) / len(errors))


class References:
    """The scores that skill is relative to.

    Args:
        networks: all networks of a run, among them those of the arms `random` and `single`.
    """

    def __init__(self, networks: Iterable[Network]) -> None:
        pooled: dict[str, list[float]] = {}
        self._single: dict[tuple[str, int], list[Estimate]] = {}  # by game and seed, by visits
        for network in networks:
            if network.arm == RANDOM:
                (game,) = network.games
                pooled.setdefault(game, []).extend(network.tests[0]["scores"][game])
            elif network.arm == SINGLE:
                (game,) = network.games
                after = [estimate(test["scores"][game]) for test in network.tests]
                self._single[game, network.seed] = after
        self._random = {game: estimate(scores) for game, scores in pooled.items()}

    @property
    def complete(self) -> bool:
        """Whether the run has both arms that skill needs."""
        return bool(self._random and self._single)

    def random(self, game: str) -> Estimate | None:
        """Return the random player's score; None if it was not measured."""
        return self._random.get(game)

    def single(self, game: str, seed: int, visits: int) -> Estimate | None:
        """Return the score of the game's own network after some visits; None if not measured."""
        after = self._single.get((game, seed), [])
        return after[visits] if visits < len(after) else None

    def skill(self, game: str, seed: int, visits: int, score: float) -> float | None:
        """Return the skill of a network of this seed after some visits to the game."""
        random, single = self.random(game), self.single(game, seed, visits)
        if random is None or single is None:
            return None
        gain, error = single.mean - random.mean, float(np.hypot(single.error, random.error))
        if gain <= 0 or gain < CLEAR_ERRORS * error:
            return None
        return (score - random.mean) / gain


def skill_in(network: Network, game: str, test: int, references: References) -> float | None:
    """Return the skill of a network in one game, in one of its tests."""
    visits = network.schedule[:test].count(game)
    score = float(np.mean(network.tests[test]["scores"][game]))
    return references.skill(game, network.seed, visits, score)


def skills(network: Network, test: int, references: References) -> Skills:
    """Return the skills of a network in all games that were trained before a test."""
    trained = [game for game in network.games if game in network.schedule[:test]]
    return {game: skill_in(network, game, test, references) for game in trained}


def first_skills(network: Network, references: References) -> Skills:
    """Return the skill at the end of each game's first visit."""
    ends = {game: moments(network, game).get(FIRST) for game in network.games}
    return {
        game: skill_in(network, game, test, references)
        for game, test in ends.items()
        if test is not None
    }


def kept(network: Network, revisit: Revisit, references: References) -> float | None:
    """Return the skill when a game comes back over the skill when it was left.

    None if the skill is undefined, or was too small when the game was left.
    """
    left, back = (
        skill_in(network, revisit.game, test, references) for test in (revisit.left, revisit.back)
    )
    return None if left is None or back is None or left < MIN_LEFT else back / left


def defined(by_game: Mapping[str, float | None]) -> list[float]:
    """Return the skills that are not None."""
    return [skill for skill in by_game.values() if skill is not None]


def total_skill(by_game: Skills) -> float | None:
    """Return the sum of skills, each clipped at 1 from above; None if all are undefined.

    Games that were not trained yet are not in `by_game` and count 0.
    """
    return clipped_total(defined(by_game)) if defined(by_game) or not by_game else None


def total_from_zero(by_game: Skills) -> float | None:
    """Return the sum of skills, each clipped to 0 and 1; None if all are undefined.

    Here a game that is played worse than at random does not cost what is known of the others.
    """
    return total_skill(
        {game: skill if skill is None else max(0.0, skill) for game, skill in by_game.items()}
    )


def mean_skill(by_game: Skills) -> float | None:
    """Return the mean of skills, each clipped at 1 from above; None if there is none."""
    values = defined(by_game)
    return clipped_total(values) / len(values) if values else None


def total_or_nan(network: Network, test: int, references: References) -> float:
    """Return the total skill in a test, for a figure; NaN if it is undefined."""
    total = total_skill(skills(network, test, references))
    return float("nan") if total is None else total


def recognition(network: Network) -> ContextMatch | None:
    """Match the contexts of a network with the games; None before any training."""
    return match_contexts(
        ContextUse(int(context), row["game"], steps)
        for row in network.training
        for context, steps in row["recognized"].items()
    )


def recognized_in_tests(network: Network) -> float | None:
    """Return the fraction of test steps in a context that belongs to the game being played.

    Only games that had been trained count. None if there are none, or if the run is from before
    this was recorded.
    """
    match = recognition(network)
    uses = [
        (match is not None and match.game_of.get(int(context)) == game, steps)
        for test in network.tests
        for game, contexts in (test.get("recognized") or {}).items()
        if test["steps_in"].get(game, 0)
        for context, steps in contexts.items()
    ]
    total = sum(steps for _, steps in uses)
    return sum(steps for right, steps in uses if right) / total if total else None
