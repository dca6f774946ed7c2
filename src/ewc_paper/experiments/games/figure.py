"""Games one after another: schedule, totals, scores per game, recognition, clips and the table."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from ewc_paper.experiments.games.clips import CLIP_FILES, check_clip, draw_clips
from ewc_paper.experiments.games.curves import draw_by_game, draw_schedule, draw_totals
from ewc_paper.experiments.games.data import (
    Network,
    Revisit,
    ceiling,
    continual_networks,
    read_networks,
    revisits,
    second_half_total,
    total,
    total_learned,
)
from ewc_paper.experiments.games.recognition import draw_recognition, recognition
from ewc_paper.experiments.view import MAX_PANELS, MAX_SEGMENTS, Layout, StoredConfig
from ewc_paper.figures.names import ARM_LABELS
from ewc_paper.figures.seeds import mean_and_deviation
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.schema import (
    Check,
    integer,
    list_of,
    mapping,
    number,
    one_of,
    record,
    short_text,
    variants,
)

MAX_CONTEXTS = 1000


def _context(name: str) -> None:
    one_of([str(number) for number in range(MAX_CONTEXTS)])(name)


def _row(run: StoredConfig, part: StoredConfig) -> Check:
    game = one_of(part["games"])

    def for_each_game(check: Check) -> Check:
        return record(**dict.fromkeys(part["games"], check))

    return variants(
        "kind",
        test=record(
            step=integer(),
            segment=integer(0, len(part["schedule"])),
            steps_in=mapping(game, integer()),
            scores=for_each_game(list_of(number(), 1)),
            normalized=for_each_game(number()),
            agreement=mapping(game, number()),
            regret=mapping(game, number()),
        ),
        train=record(step=integer(), game=game, recognized=mapping(_context, integer(1))),
    )


LAYOUT = Layout(
    _row,
    part=record(
        arm=one_of(ARM_LABELS),
        seed=integer(),
        games=list_of(short_text, 1, MAX_PANELS),
        schedule=list_of(short_text, 0, MAX_SEGMENTS),  # empty for a random player
        settings=record(segment_steps=integer(1), ewc_start=integer()),
    ),
    files={CLIP_FILES: check_clip},
)

# The rows of the table; "X / plain" is the ratio of the mean of X to that of plain training.
MEASURES = (
    "at the end",
    "end / plain",
    "second half",
    "2nd half / plain",
    "learned",
    "learned / plain",
    "kept on return",
    "least kept",
    "same action",
    "regret of Q",
    "recognized",
    "contexts",
)


def draw(run: RunDirectory) -> list[Path]:
    """Draw the run's figures from its metrics, and its clips."""
    networks, figures = read_networks(run), run.figures
    arms = continual_networks(networks)
    files = []
    if arms:
        files.append(draw_schedule(networks, figures / "games-schedule.png"))
        files.append(draw_totals(networks, figures / "games-total.png"))
    if networks:
        files.append(draw_by_game(networks, figures / "games-by-game.png"))
    if "ewc-fmn" in arms:
        files.append(draw_recognition(arms["ewc-fmn"][0], figures / "games-recognition.png"))
    return files + draw_clips(networks, figures / "clips")


def table(run: RunDirectory) -> Table:
    """Totals compared with plain training, and what is kept when a game returns, per arm."""
    networks = read_networks(run)
    arms = continual_networks(networks)
    plain = arms.get("plain", [])
    columns = {arm: _column(learners, plain, networks) for arm, learners in arms.items()}
    ceilings = [
        one for learner in next(iter(arms.values()), []) if (one := ceiling(networks, learner))
    ]
    if ceilings:
        columns["single"] = _ceiling_column(ceilings)
    games = len(networks[0].games) if networks else 0
    table = Table("", title=f"total normalized score of {games} games, clipped at 1 per game")
    for arm in columns:
        table.add_column(ARM_LABELS[arm], justify="right")
    for measure in MEASURES:
        cells = [column.get(measure, "") for column in columns.values()]
        if any(cells):
            table.add_row(measure, *cells)
    return table


def _column(
    learners: Sequence[Network], plain: Sequence[Network], networks: Sequence[Network]
) -> dict[str, str]:
    """Return the cells of one arm, by measure."""
    cells = (
        *_compared(learners, plain, _end_total),
        *_compared(learners, plain, second_half_total),
        *_compared(learners, plain, lambda one: total_learned(networks, one)),
        *_on_return([one for learner in learners for one in revisits(learner)]),
        *_recognized(learners),
    )
    return dict(zip(MEASURES, cells, strict=True))


def _ceiling_column(ceilings: Sequence[list[float]]) -> dict[str, str]:
    """Return the cells of one network per game, by measure."""
    later = [float(np.mean(totals[len(totals) // 2 + 1 :])) for totals in ceilings]
    return {
        "at the end": mean_and_deviation([totals[-1] for totals in ceilings]),
        "second half": mean_and_deviation(later),
    }


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


def _on_return(found: Sequence[Revisit]) -> tuple[str, str, str, str]:
    """Format what is kept (mean and least), the agreement and the regret."""
    kept = [one.kept for one in found if one.kept is not None]
    agreement = [one.agreement for one in found if one.agreement is not None]
    regret = [one.regret for one in found if one.regret is not None]
    return (
        f"{np.mean(kept):.0%}" if kept else "",
        f"{min(kept):.0%}" if kept else "",
        f"{np.mean(agreement):.0%}" if agreement else "",
        f"{np.mean(regret):.3f}" if regret else "",
    )


def _recognized(learners: Sequence[Network]) -> tuple[str, str]:
    """Format the fraction of steps recognized correctly and the number of contexts, if any."""
    matches = [match for learner in learners if (match := recognition(learner)) is not None]
    if not matches or learners[0].arm != "ewc-fmn":
        return "", ""
    correct = np.mean([match.correct for match in matches])
    contexts = np.mean([len(match.game_of) for match in matches])
    return f"{correct:.1%}", f"{contexts:.1f}"
