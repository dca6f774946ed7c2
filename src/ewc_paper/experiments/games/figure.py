"""Games one after another: schedule, totals, scores by game, recognition, clips and the table."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from ewc_paper.experiments.games.clips import draw_clips
from ewc_paper.experiments.games.curves import draw_by_game, draw_schedule, draw_totals
from ewc_paper.experiments.games.data import (
    Network,
    Return,
    ceiling,
    gain,
    read,
    returns,
    second_half,
    together,
    total,
)
from ewc_paper.experiments.games.recognition import draw_recognition, recognition
from ewc_paper.figures.names import ARMS
from ewc_paper.figures.seeds import mean_and_spread
from ewc_paper.runs.directory import RunDirectory

MEASURES = (
    "at the end",
    "over plain",
    "second half",
    "2nd over plain",
    "gain at the end",
    "gain over plain",
    "kept on return",
    "least kept",
    "same action",
    "regret of Q",
    "recognised",
    "contexts",
)


def draw(run: RunDirectory) -> list[Path]:
    """Draw the run's figures from its metrics, and its clips."""
    networks, figures = read(run), run.figures
    arms = together(networks)
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
    """A column an arm: its totals beside plain training's, and what is kept when a game returns."""
    networks = read(run)
    arms = together(networks)
    plain = arms.get("plain", [])
    columns = {arm: _column(learners, plain, networks) for arm, learners in arms.items()}
    limits = [limit for one in next(iter(arms.values()), []) if (limit := ceiling(networks, one))]
    if limits:
        later = [float(np.mean(limit[len(limit) // 2 + 1 :])) for limit in limits]
        end = [limit[-1] for limit in limits]
        columns["single"] = {
            "at the end": mean_and_spread(end),
            "second half": mean_and_spread(later),
        }
    games = len(networks[0].games) if networks else 0
    table = Table("", title=f"total normalised score of {games}, clipped at 1 a game")
    for arm in columns:
        table.add_column(ARMS[arm], justify="right")
    for measure in MEASURES:
        cells = [column.get(measure, "") for column in columns.values()]
        if any(cells):
            table.add_row(measure, *cells)
    return table


def _column(
    learners: Sequence[Network], plain: Sequence[Network], networks: Sequence[Network]
) -> dict[str, str]:
    """The cells of one arm, by measure."""
    at_the_end = _beside(learners, plain, _at_the_end)
    later = _beside(learners, plain, second_half)
    gained = _beside(learners, plain, lambda one: gain(networks, one))
    on_return = _on_return([one for learner in learners for one in returns(learner)])
    cells = (*at_the_end, *later, *gained, *on_return, *_recognised(learners))
    return dict(zip(MEASURES, cells, strict=True))


def _at_the_end(network: Network) -> float | None:
    ended = len(network.tests) > len(network.schedule)
    return total(network.tests[-1]) if ended else None


def _beside(
    learners: Sequence[Network],
    plain: Sequence[Network],
    measure: Callable[[Network], float | None],
) -> tuple[str, str]:
    """A measure over seeds, and the ratio of its mean to that of plain training."""
    values = [value for one in learners if (value := measure(one)) is not None]
    reference = [value for one in plain if (value := measure(one)) is not None]
    if not values:
        return "", ""
    ratio = np.mean(values) / np.mean(reference) if reference and np.mean(reference) > 0 else None
    return mean_and_spread(values), "" if ratio is None else f"{ratio:.2f}"


def _on_return(found: Sequence[Return]) -> tuple[str, str, str, str]:
    kept = [one.kept for one in found if one.kept is not None]
    agreement = [one.agreement for one in found if one.agreement is not None]
    regret = [one.regret for one in found if one.regret is not None]
    return (
        f"{np.mean(kept):.0%}" if kept else "",
        f"{min(kept):.0%}" if kept else "",
        f"{np.mean(agreement):.0%}" if agreement else "",
        f"{np.mean(regret):.3f}" if regret else "",
    )


def _recognised(learners: Sequence[Network]) -> tuple[str, str]:
    """For networks that work out the game by themselves: how often they are right, and contexts."""
    found = [one for learner in learners if (one := recognition(learner)) is not None]
    if not found or learners[0].arm != "ewc-fmn":
        return "", ""
    right, contexts = np.mean(found, axis=0)
    return f"{right:.1%}", f"{contexts:.1f}"
