"""The tables of a run of games.

`summary` says what each arm learns, what it keeps, and what it forgets; `by_game` has the raw score
and skill of each arm in each game, beside the random player's and those of the game's own network.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from rich.table import Table

from ewc_paper.experiments.games.data import (
    BEFORE_SECOND,
    FIRST,
    MIN_LEFT,
    MOMENTS,
    Estimate,
    Network,
    References,
    Revisit,
    Skills,
    average,
    ceiling,
    continual_networks,
    defined,
    first_skills,
    kept,
    later_tests,
    mean_skill,
    moments,
    recognition,
    recognized_in_tests,
    revisits,
    second_half_total,
    skill_in,
    skills,
    total,
    total_from_zero,
    total_skill,
)
from ewc_paper.figures.names import (
    ARM_LABELS,
    game_marks,
    game_name,
    listed,
    mean_and_deviation,
)
from ewc_paper.games.config import ARMS


class Measure(NamedTuple):
    """A row of the summary: its key in the code, its name, and what it means (once per group)."""

    key: str
    name: str
    meaning: str = ""


# The rows of the summary. A ratio is that of the mean to the mean of plain training.
SKILL_MEASURES = (
    Measure(
        "end",
        "skill at the end",
        "skills of all games after the last visit, added up; each counts 1 at most",
    ),
    Measure("end ratio", "… over plain", "times the same of plain training"),
    Measure(
        "end undefined",
        "… games not counted",
        "even a network of their own did not learn them, so there is nothing to compare with",
    ),
    Measure(
        "end from 0",
        "skill at the end, from 0",
        "the same, but a game that is played worse than at random counts 0, not less",
    ),
    Measure("end from 0 ratio", "… over plain"),
    Measure(
        "second",
        "skill, second visits",
        "the total averaged over the tests in the second half of the schedule",
    ),
    Measure("second ratio", "… over plain"),
    Measure("second undefined", "… games not counted"),
    Measure("second from 0", "skill, second visits, from 0"),
    Measure("second from 0 ratio", "… over plain"),
    Measure(
        "first",
        "skill, first visits",
        "mean over the games, each at the end of its own first visit: how well new games are "
        "learned",
    ),
    Measure("first ratio", "… over plain"),
    Measure("first undefined", "… games not counted"),
    Measure(
        "kept",
        "kept on return",
        "the skill just before a game is trained again over that when it was left, mean over the "
        f"returns; a game left with a skill below {MIN_LEFT:g} has nothing to keep and does not "
        "count",
    ),
    Measure("least kept", "… worst return"),
    Measure("returns", "… returns counted"),
)
MEASURES = (
    *SKILL_MEASURES,
    Measure(
        "normalized end",
        "normalized at the end",
        "the paper's total score: 0 is a random player and 1 the reference, a human for Atari; "
        "each game counts 1 at most",
    ),
    Measure("normalized end ratio", "… over plain"),
    Measure("normalized second", "normalized, second visits"),
    Measure("normalized second ratio", "… over plain"),
    Measure(
        "same action",
        "same action on return",
        "states of the game, stored when it was left, in which the agent still prefers the same "
        "action",
    ),
    Measure(
        "regret",
        "value lost on return",
        "how much less the actions preferred now are worth in these states, by the values of "
        "when it was left",
    ),
    Measure(
        "recognized",
        "steps recognized",
        "training steps in a context that belongs to the game being played; one context per game "
        "is ideal",
    ),
    Measure("contexts", "… contexts"),
    Measure("recognized in tests", "… in tests"),
)

Cells = Iterable[str]


def summary(networks: Sequence[Network]) -> Table:
    """Return a table with one column per arm; measures that no arm has are left out."""
    references, arms = References(networks), continual_networks(networks)
    plain = arms.get("plain", [])
    columns = {arm: _column(learners, plain, references) for arm, learners in arms.items()}
    columns["single"] = _ceiling_column(networks, next(iter(arms.values()), []), references)
    games = len(next(iter(arms.values()))[0].games) if arms else 0
    table = Table("", title=_title(games, references), caption_justify="left")
    legend: list[str] = []
    shown = [arm for arm, column in columns.items() if any(column.values())]
    for arm in shown:
        table.add_column(ARM_LABELS[arm], justify="right")
    for measure in MEASURES:
        cells = [columns[arm].get(measure.key, "") for arm in shown]
        if any(cells):
            table.add_row(measure.name, *cells)
            legend += [f"{measure.name}: {measure.meaning}"] * bool(measure.meaning)
    legend += game_marks(game for learners in arms.values() for game in learners[0].games)
    table.caption = "\n".join(legend)
    return table


def _title(games: int, references: References) -> str:
    if references.complete:
        return (
            f"{games} games in one network, mean ± deviation over seeds; the skill in a game is 0 "
            "for a random player and 1 for a network of its own"
        )
    return (
        f"total normalized score of {games} games, clipped at 1 per game; "
        "no skill, as that needs the arms random and single"
    )


def _column(
    learners: Sequence[Network], plain: Sequence[Network], references: References
) -> dict[str, str]:
    """Return the cells of one arm, by measure."""
    skill_cells: Cells = [""] * len(SKILL_MEASURES)
    if references.complete:
        skill_cells = _skill_cells(learners, plain, references)
    cells = (
        *_compared(learners, plain, _end_total),
        *_compared(learners, plain, second_half_total),
        *_drift_cells([revisit for learner in learners for revisit in revisits(learner)]),
        *_recognized(learners),
    )
    keys = [measure.key for measure in MEASURES]
    return dict(zip(keys, (*skill_cells, *cells), strict=True))


def _skill_cells(
    learners: Sequence[Network], plain: Sequence[Network], references: References
) -> Cells:
    """Format the skill at the end, over the second visits and after the first, and what is kept."""

    def at_end(network: Network) -> list[Skills]:
        tests = [len(network.schedule)] if network.finished else []
        return [skills(network, test, references) for test in tests]

    def later(network: Network) -> list[Skills]:
        return [skills(network, test, references) for test in later_tests(network)]

    def first(network: Network) -> list[Skills]:
        return [first_skills(network, references)]

    for skills_of in (at_end, later):
        yield from _cells_of(learners, plain, skills_of, total_skill)
        yield from _compared(learners, plain, _mean_of(skills_of, total_from_zero))
    yield from _cells_of(learners, plain, first, mean_skill)
    yield from _kept_cells(learners, references)


def _cells_of(
    learners: Sequence[Network],
    plain: Sequence[Network],
    skills_of: Callable[[Network], list[Skills]],
    combined: Callable[[Skills], float | None],
) -> Cells:
    """Format a measure of skill over seeds, its ratio to plain training, and what is left out.

    Args:
        learners: the networks of an arm.
        plain: those of plain training.
        skills_of: returns the skills in some tests of a network.
        combined: makes one number of the skills of a test.
    """
    yield from _compared(learners, plain, _mean_of(skills_of, combined))
    tests = [test for learner in learners for test in skills_of(learner)]
    count = sum(len(test) for test in tests)
    yield f"{count - sum(len(defined(test)) for test in tests)} of {count}" if count else ""


def _mean_of(
    skills_of: Callable[[Network], list[Skills]], combined: Callable[[Skills], float | None]
) -> Callable[[Network], float | None]:
    """Return the measure of a network that is the mean over its tests of one number per test."""
    return lambda network: _mean(map(combined, skills_of(network)))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _kept_cells(learners: Sequence[Network], references: References) -> Cells:
    """Format what is kept when a game returns: the mean, the least, and how many returns count."""
    shares = [
        kept(learner, revisit, references) for learner in learners for revisit in revisits(learner)
    ]
    known = [value for value in shares if value is not None]
    yield f"{np.mean(known):.0%}" if known else ""
    yield f"{min(known):.0%}" if known else ""
    yield f"{len(known)} of {len(shares)}" if shares else ""


def _drift_cells(returns: Sequence[Revisit]) -> Cells:
    """Format the agreement and the regret on stored states, when a game returns."""
    agreement = [revisit.agreement for revisit in returns if revisit.agreement is not None]
    regret = [revisit.regret for revisit in returns if revisit.regret is not None]
    yield f"{np.mean(agreement):.0%}" if agreement else ""
    yield f"{np.mean(regret):.3f}" if regret else ""


def _end_total(network: Network) -> float | None:
    return total(network.tests[-1]) if network.finished else None


def _compared(
    learners: Sequence[Network],
    plain: Sequence[Network],
    measure: Callable[[Network], float | None],
) -> tuple[str, str]:
    """Format a measure over seeds, and the ratio of its mean to that of plain training."""
    values = [value for learner in learners if (value := measure(learner)) is not None]
    reference = [value for network in plain if (value := measure(network)) is not None]
    if not values:
        return "", ""
    ratio = np.mean(values) / np.mean(reference) if reference and np.mean(reference) > 0 else None
    return mean_and_deviation(values), "" if ratio is None else f"{ratio:.2f}"


def _recognized(learners: Sequence[Network]) -> tuple[str, str, str]:
    """Format the fraction of steps recognized correctly, in tests too, and the contexts, if any.

    Contexts that were merged with another do not count. Runs from before this was recorded count
    them.
    """
    matches = [
        (learner, match) for learner in learners if (match := recognition(learner)) is not None
    ]
    if not matches or not ARMS[learners[0].arm].recognizes:
        return "", "", ""
    correct = np.mean([match.correct for _, match in matches])
    recorded = [learner.tests[-1].get("contexts") for learner, _ in matches]
    contexts = [
        len(match.game_of) if number is None else number
        for number, (_, match) in zip(recorded, matches, strict=True)
    ]
    tests = _mean(map(recognized_in_tests, learners))
    in_tests = "" if tests is None else f"{tests:.1%}"
    return f"{correct:.1%}", f"{np.mean(contexts):.1f}", in_tests


def _ceiling_column(
    networks: Sequence[Network], learners: Sequence[Network], references: References
) -> dict[str, str]:
    """Return the cells of one network per game: a skill of 1 in each game where it is defined."""
    cells = {}
    finished = [learner for learner in learners if learner.finished]
    if finished and references.complete:
        ends = [skills(learner, len(learner.schedule), references) for learner in finished]
        cells["end"] = mean_and_deviation([len(defined(end)) for end in ends])
    limits = [limit for learner in learners if (limit := ceiling(networks, learner))]
    if limits:
        later = [float(np.mean(limit[len(limit) // 2 + 1 :])) for limit in limits]
        cells["normalized end"] = mean_and_deviation([limit[-1] for limit in limits])
        cells["normalized second"] = mean_and_deviation(later)
    return cells


def sentence(networks: Sequence[Network]) -> str:
    """Say how well all games are played at the end, by arm; empty until the networks are there."""
    references, arms = References(networks), continual_networks(networks)
    measure = "skill" if references.complete else "normalized score"
    means = {}
    for arm, learners in arms.items():
        ends = [learner for learner in learners if learner.finished]
        if (mean := _mean(_total_at_end(learner, references) for learner in ends)) is not None:
            means[arm] = mean
    if not means:
        return ""
    best_first = sorted(means, key=lambda arm: -means[arm])
    games = len(next(iter(arms.values()))[0].games)
    limit = f"; {games} networks of one game each have {games}" if references.complete else ""
    return (
        f"One network that learned {games} games in turn has a total {measure} of "
        f"{listed([f'{means[arm]:.1f} ({ARM_LABELS[arm]})' for arm in best_first])}{limit}."
    )


def _total_at_end(network: Network, references: References) -> float | None:
    if references.complete:
        return total_skill(skills(network, len(network.schedule), references))
    return total(network.tests[-1])


def by_game(networks: Sequence[Network]) -> Table:
    """Return a table with up to three rows per game, one for each moment it is looked at."""
    references, arms = References(networks), continual_networks(networks)
    table = Table(
        "game",
        title="score (skill) by game, mean over seeds",
        caption="(skill): not clipped; – where even a network of its own did not learn the game\n"
        "±: standard error over the episodes\n"
        f"{FIRST}: at the end of the game's first visit\n"
        f"{BEFORE_SECOND}: just before it is trained again, after other games",
        caption_justify="left",
    )
    table.add_column("")
    for name in ("random", "single", *arms):
        table.add_column(ARM_LABELS[name], justify="right")
    learners = [learner for networks_of_arm in arms.values() for learner in networks_of_arm]
    for game in dict.fromkeys(game for learner in learners for game in learner.games):
        rows = list(_rows(game, arms, references))
        for number, row in enumerate(rows):
            name = "" if number else game_name(game)
            table.add_row(name, *row, end_section=number == len(rows) - 1)
    return table


def _rows(
    game: str, arms: dict[str, list[Network]], references: References
) -> Iterator[tuple[str, ...]]:
    """Yield a row for each moment that a network has reached: moment, references and arms."""
    playing = {
        arm: [network for network in networks if game in network.games]
        for arm, networks in arms.items()
    }
    for moment in MOMENTS:
        reached = {
            arm: [network for network in networks if moment in moments(network, game)]
            for arm, networks in playing.items()
        }
        if any(reached.values()):
            everyone = [network for networks in reached.values() for network in networks]
            yield (
                moment,
                _formatted(references.random(game)),
                _formatted(_own_score(game, moment, everyone, references)),
                *(
                    _score_and_skill(game, moment, networks, references)
                    for networks in reached.values()
                ),
            )


def _own_score(
    game: str, moment: str, networks: Sequence[Network], references: References
) -> Estimate | None:
    """Return the mean score of the game's own networks, after as many visits as at the moment."""
    visits = {
        (network.seed, network.schedule[: moments(network, game)[moment]].count(game))
        for network in networks
    }
    scores = [references.single(game, *place) for place in sorted(visits)]
    known = [score for score in scores if score is not None]
    return average(known) if known else None


def _score_and_skill(
    game: str, moment: str, networks: Sequence[Network], references: References
) -> str:
    """Format the mean score, and the mean skill with how many seeds have one."""
    if not networks:
        return ""
    tests = [moments(network, game)[moment] for network in networks]
    pairs = list(zip(networks, tests, strict=True))
    score = np.mean([np.mean(network.tests[test]["scores"][game]) for network, test in pairs])
    measured = [skill_in(network, game, test, references) for network, test in pairs]
    known = [skill for skill in measured if skill is not None]
    skill = f"{np.mean(known):.2f}" if known else "–"
    some = f", {len(known)} of {len(measured)}" if 0 < len(known) < len(measured) else ""
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
