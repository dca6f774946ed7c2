"""The summary of a run of games: what each arm learns, what it keeps, and what it forgets."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from rich.table import Table

from ewc_paper.experiments.games.data import (
    Network,
    Revisit,
    ceiling,
    continual_networks,
    later_tests,
    revisits,
    second_half_total,
    total,
)
from ewc_paper.experiments.games.recognition import recognition, recognized_in_tests
from ewc_paper.experiments.games.skill import (
    References,
    Skills,
    defined,
    first_skills,
    kept,
    mean_skill,
    skills,
    total_from_zero,
    total_skill,
)
from ewc_paper.figures.names import ARM_LABELS
from ewc_paper.figures.seeds import mean_and_deviation
from ewc_paper.games.arms import ARMS

# The rows of the table; "X / plain" is the ratio of the mean of X to that of plain training.
SKILL_MEASURES = (
    *("skill, end", "end / plain", "end, left out"),
    *("end from 0", "end from 0 / plain"),
    *("second visits", "second / plain", "second, left out"),
    *("second from 0", "second from 0 / plain"),
    *("first visits", "first / plain", "first, left out"),
    *("kept", "least kept", "kept, returns"),
)
MEASURES = (
    *SKILL_MEASURES,
    *("normalized, end", "norm. end / plain"),
    *("normalized, 2nd half", "norm. 2nd / plain"),
    *("same action", "regret of Q"),
    *("recognized", "contexts", "recognized in tests"),
)

Cells = Iterable[str]


def summary(networks: Sequence[Network]) -> Table:
    """Return a table with one column per arm; measures that no arm has are left out."""
    references, arms = References(networks), continual_networks(networks)
    plain = arms.get("plain", [])
    columns = {arm: _column(learners, plain, references) for arm, learners in arms.items()}
    columns["single"] = _ceiling_column(networks, next(iter(arms.values()), []), references)
    games = len(next(iter(arms.values()))[0].games) if arms else 0
    table = Table("", title=_title(games, references))
    shown = [arm for arm, column in columns.items() if any(column.values())]
    for arm in shown:
        table.add_column(ARM_LABELS[arm], justify="right")
    for measure in MEASURES:
        cells = [columns[arm].get(measure, "") for arm in shown]
        if any(cells):
            table.add_row(measure, *cells)
    return table


def _title(games: int, references: References) -> str:
    if references.complete:
        return (
            f"skill of {games} games (0: random player, 1: own network), "
            "each clipped at 1; normalized: 1 is the reference of games.scores"
        )
    return (
        f"total normalized score of {games} games, clipped at 1 per game; "
        "no skill, which needs the arms random and single"
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
        *_drift_cells([one for learner in learners for one in revisits(learner)]),
        *_recognized(learners),
    )
    return dict(zip(MEASURES, (*skill_cells, *cells), strict=True))


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

    for found in (at_end, later):
        yield from _cells_of(learners, plain, found, total_skill)
        yield from _compared(learners, plain, _mean_of(found, total_from_zero))
    yield from _cells_of(learners, plain, first, mean_skill)
    yield from _kept_cells(learners, references)


def _cells_of(
    learners: Sequence[Network],
    plain: Sequence[Network],
    found: Callable[[Network], list[Skills]],
    combined: Callable[[Skills], float | None],
) -> Cells:
    """Format a measure of skill over seeds, its ratio to plain training, and what is left out.

    Args:
        learners: the networks of an arm.
        plain: those of plain training.
        found: returns the skills in some tests of a network.
        combined: makes one number of the skills of a test.
    """
    yield from _compared(learners, plain, _mean_of(found, combined))
    tests = [test for one in learners for test in found(one)]
    count = sum(len(test) for test in tests)
    yield f"{count - sum(len(defined(test)) for test in tests)} of {count}" if count else ""


def _mean_of(
    found: Callable[[Network], list[Skills]], combined: Callable[[Skills], float | None]
) -> Callable[[Network], float | None]:
    """Return the measure of a network that is the mean over its tests of one number per test."""
    return lambda network: _mean(map(combined, found(network)))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _kept_cells(learners: Sequence[Network], references: References) -> Cells:
    """Format what is kept when a game returns: the mean, the least, and how many returns count."""
    found = [kept(one, revisit, references) for one in learners for revisit in revisits(one)]
    known = [value for value in found if value is not None]
    yield f"{np.mean(known):.0%}" if known else ""
    yield f"{min(known):.0%}" if known else ""
    yield f"{len(known)} of {len(found)}" if found else ""


def _drift_cells(found: Sequence[Revisit]) -> Cells:
    """Format the agreement and the regret on stored states, when a game returns."""
    agreement = [one.agreement for one in found if one.agreement is not None]
    regret = [one.regret for one in found if one.regret is not None]
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
    values = [value for one in learners if (value := measure(one)) is not None]
    reference = [value for one in plain if (value := measure(one)) is not None]
    if not values:
        return "", ""
    ratio = np.mean(values) / np.mean(reference) if reference and np.mean(reference) > 0 else None
    return mean_and_deviation(values), "" if ratio is None else f"{ratio:.2f}"


def _recognized(learners: Sequence[Network]) -> tuple[str, str, str]:
    """Format the fraction of steps recognized correctly, in tests too, and the contexts, if any.

    Contexts that were merged with another do not count. Runs from before this was recorded count
    them.
    """
    matches = [(one, match) for one in learners if (match := recognition(one)) is not None]
    if not matches or not ARMS[learners[0].arm].recognizes:
        return "", "", ""
    correct = np.mean([match.correct for _, match in matches])
    recorded = [one.tests[-1].get("contexts") for one, _ in matches]
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
    finished = [one for one in learners if one.finished]
    if finished and references.complete:
        ends = [skills(one, len(one.schedule), references) for one in finished]
        cells["skill, end"] = mean_and_deviation([len(defined(end)) for end in ends])
    totals = [one for learner in learners if (one := ceiling(networks, learner))]
    if totals:
        later = [float(np.mean(one[len(one) // 2 + 1 :])) for one in totals]
        cells["normalized, end"] = mean_and_deviation([one[-1] for one in totals])
        cells["normalized, 2nd half"] = mean_and_deviation(later)
    return cells
