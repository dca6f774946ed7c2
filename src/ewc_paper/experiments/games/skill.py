"""Skill: how good a score is between a random player and a network of the game's own.

    skill = (score − random) / (single − random)

`random` is the mean of all episodes of the random players of the game. `single` is the network of
the same seed that learned this game alone, after as many visits to it. Both are measured in the
same run under the same rules, so skill is 0 for a player that learned nothing and 1 for one that
lost nothing to the other games.

Where `single` is not clearly above `random` there is nothing to divide by: skill is None, the game
is left out, and tables say how often.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ewc_paper.experiments.games.data import FIRST, Network, Revisit, clipped_total, moments
from ewc_paper.games.arms import RANDOM, SINGLE

CLEAR_ERRORS = 2.0  # `single − random` must be at least so many of its standard errors
MIN_LEFT = 0.25  # with less skill when it was left, a game has nothing to keep

Skills = dict[str, float | None]  # by game; None where skill is undefined


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


def defined(found: Mapping[str, float | None]) -> list[float]:
    """Return the skills that are not None."""
    return [skill for skill in found.values() if skill is not None]


def total_skill(found: Skills) -> float | None:
    """Return the sum of skills, each clipped at 1 from above; None if all are undefined.

    Games that were not trained yet are not in `found` and count 0.
    """
    return clipped_total(defined(found)) if defined(found) or not found else None


def total_from_zero(found: Skills) -> float | None:
    """Return the sum of skills, each clipped to 0 and 1; None if all are undefined.

    Here a game that is played worse than at random does not cost what is known of the others.
    """
    return total_skill({game: one if one is None else max(0.0, one) for game, one in found.items()})


def mean_skill(found: Skills) -> float | None:
    """Return the mean of skills, each clipped at 1 from above; None if there is none."""
    values = defined(found)
    return clipped_total(values) / len(values) if values else None


def total_or_nan(network: Network, test: int, references: References) -> float:
    """Return the total skill in a test, for a figure; NaN if it is undefined."""
    total = total_skill(skills(network, test, references))
    return float("nan") if total is None else total
