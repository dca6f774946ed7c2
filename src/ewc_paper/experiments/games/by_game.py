"""The table by game: raw score and skill of each arm, between the random and the own network."""

from collections.abc import Iterator, Sequence

import numpy as np
from rich.table import Table

from ewc_paper.experiments.games.data import MOMENTS, Network, continual_networks, moments
from ewc_paper.experiments.games.skill import Estimate, References, average, skill_in
from ewc_paper.figures.names import ARM_LABELS, game_name


def by_game(networks: Sequence[Network]) -> Table:
    """Return a table with up to three rows per game, one for each moment it is looked at."""
    references, arms = References(networks), continual_networks(networks)
    table = Table(
        "game",
        title="score (skill) by game: mean over seeds, skill not clipped, – where it is undefined; "
        "± standard error over episodes",
    )
    table.add_column("")
    for name in ("random", "single", *arms):
        table.add_column(ARM_LABELS[name], justify="right")
    learners = [one for networks_of_arm in arms.values() for one in networks_of_arm]
    for game in dict.fromkeys(game for one in learners for game in one.games):
        rows = list(_rows(game, arms, references))
        for number, row in enumerate(rows):
            name = "" if number else game_name(game)
            table.add_row(name, *row, end_section=number == len(rows) - 1)
    return table


def _rows(
    game: str, arms: dict[str, list[Network]], references: References
) -> Iterator[tuple[str, ...]]:
    """Yield a row for each moment that a network has reached: moment, references and arms."""
    playing = {arm: [one for one in found if game in one.games] for arm, found in arms.items()}
    for moment in MOMENTS:
        reached = {
            arm: [one for one in found if moment in moments(one, game)]
            for arm, found in playing.items()
        }
        if any(reached.values()):
            everyone = [one for found in reached.values() for one in found]
            yield (
                moment,
                _formatted(references.random(game)),
                _formatted(_own_score(game, moment, everyone, references)),
                *(_score_and_skill(game, moment, found, references) for found in reached.values()),
            )


def _own_score(
    game: str, moment: str, networks: Sequence[Network], references: References
) -> Estimate | None:
    """Return the mean score of the game's own networks, after as many visits as at the moment."""
    visits = {
        (one.seed, one.schedule[: moments(one, game)[moment]].count(game)) for one in networks
    }
    found = [references.single(game, *place) for place in sorted(visits)]
    known = [one for one in found if one is not None]
    return average(known) if known else None


def _score_and_skill(
    game: str, moment: str, networks: Sequence[Network], references: References
) -> str:
    """Format the mean score, and the mean skill with how many seeds have one."""
    if not networks:
        return ""
    tests = [moments(one, game)[moment] for one in networks]
    pairs = list(zip(networks, tests, strict=True))
    score = np.mean([np.mean(one.tests[test]["scores"][game]) for one, test in pairs])
    found = [skill_in(one, game, test, references) for one, test in pairs]
    known = [skill for skill in found if skill is not None]
    skill = f"{np.mean(known):.2f}" if known else "–"
    some = f", {len(known)} of {len(found)}" if 0 < len(known) < len(found) else ""
    return f"{_number(float(score))} ({skill}{some})"


def _formatted(score: Estimate | None) -> str:
    if score is None:
        return ""
    error = f" ± {_number(score.error)}" if np.isfinite(score.error) else ""
    return f"{_number(score.mean)}{error}"


def _number(value: float) -> str:
    """Format a score of Atari or MinAtar: 12,380 or 431 or 12.3 or 0.55."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"
