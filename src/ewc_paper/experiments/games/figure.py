"""Games one after another: schedule, totals, scores per game, recognition, clips and the table."""

from pathlib import Path

from rich.table import Table

from ewc_paper.experiments.games.by_game import by_game
from ewc_paper.experiments.games.clips import CLIP_FILES, check_clip, draw_clips
from ewc_paper.experiments.games.curves import draw_by_game, draw_schedule, draw_totals
from ewc_paper.experiments.games.data import continual_networks, read_networks
from ewc_paper.experiments.games.plasticity import draw_plasticity
from ewc_paper.experiments.games.recognition import draw_recognition
from ewc_paper.experiments.games.skill import References
from ewc_paper.experiments.games.summary import summary
from ewc_paper.experiments.view import MAX_PANELS, MAX_SEGMENTS, Layout, StoredConfig
from ewc_paper.figures.names import ARM_LABELS
from ewc_paper.games.arms import ARMS
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


def draw(run: RunDirectory) -> list[Path]:
    """Draw the run's figures from its metrics, and its clips."""
    networks, figures = read_networks(run), run.figures
    arms, references = continual_networks(networks), References(networks)
    files = []
    if arms:
        learners = [one for found in arms.values() for one in found]
        files.append(draw_schedule(learners, figures / "games-schedule.png"))
        files.append(draw_totals(networks, references, figures / "games-total.png"))
    if arms and references.complete:
        files.append(draw_plasticity(networks, references, figures / "games-plasticity.png"))
    if networks:
        files.append(draw_by_game(networks, figures / "games-by-game.png"))
    recognizing = [learners[0] for arm, learners in arms.items() if ARMS[arm].recognizes]
    if recognizing:
        files.append(draw_recognition(recognizing[-1], figures / "games-recognition.png"))
    return files + draw_clips(networks, figures / "clips")


def table(run: RunDirectory) -> Table:
    """Return the summary of the arms and, if the run can tell skill, the scores by game."""
    networks = read_networks(run)
    both = Table.grid()
    if continual_networks(networks):
        both.add_row(summary(networks))
        if References(networks).complete:
            both.add_row(by_game(networks))
    return both
