"""Games one after another: schedule, totals, scores per game, recognition, clips and the table."""

from pathlib import Path

from rich.table import Table

from ewc_paper.experiments.games.by_game import by_game
from ewc_paper.experiments.games.clips import CLIP_FILES, check_clip, clip_panels, draw_clips
from ewc_paper.experiments.games.curves import (
    draw_schedule,
    draw_totals,
    schedule_panel,
    total_panels,
)
from ewc_paper.experiments.games.data import Network, continual_networks, read_networks
from ewc_paper.experiments.games.plasticity import draw_plasticity, plasticity_panels
from ewc_paper.experiments.games.recognition import draw_recognition, recognition_panel
from ewc_paper.experiments.games.score_curves import draw_scores, score_panels
from ewc_paper.experiments.games.skill import References
from ewc_paper.experiments.games.summary import summary
from ewc_paper.experiments.view import MAX_PANELS, MAX_SEGMENTS, Layout, Paper, StoredConfig
from ewc_paper.figures.names import ARM_LABELS
from ewc_paper.figures.panel import Figure, Panel
from ewc_paper.games.arms import ARMS
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.schema import (
    Check,
    integer,
    list_of,
    mapping,
    number,
    one_of,
    optional,
    record,
    short_text,
    variants,
)

MAX_CONTEXTS = 1000


def _context(name: str) -> None:
    one_of([str(number) for number in range(MAX_CONTEXTS)])(name)


def _row(run: StoredConfig, part: StoredConfig) -> Check:
    game = one_of(part["games"])
    steps_by_context = mapping(_context, integer(1))

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
            contexts=optional(integer(0, MAX_CONTEXTS)),
            recognized=optional(mapping(game, steps_by_context)),
        ),
        train=record(step=integer(), game=game, recognized=steps_by_context),
    )


PAPER = Paper(
    "the figure on Atari, panels A and B",
    "One network learns ten Atari games in turn, with returns. Plain training never plays more "
    "than one of them. With EWC the total human-normalized score rises over the games, nearly as "
    "high when the agent works out the game by itself (Forget-Me-Not) as when it is told. It stays "
    "below ten separate networks.",
    "Panel A is the schedule: which game is trained when. Panel B is the total human-normalized "
    "score, clipped at 1 per game, over training: plain training stays near 1, EWC told the game "
    "and EWC that recognizes it rise together, and a line at 10 stands for ten networks.",
)

# By file: the title of a figure, and how to read it.
TEXTS = {
    "games-total": (
        "How well all games are played together, over training",
        "Each game counts 1 at most. One network per game is what can be reached.",
    ),
    "games-schedule": ("Which game is trained when", "Every game comes back."),
    "games-plasticity": (
        "What is learned, and what is kept",
        "Skill is 0 for a random player and 1 for a network that learned this game alone. Small "
        "points are seeds, large ones their mean.",
    ),
    "games-by-game": (
        "The score of each game over the steps in it",
        "A vertical drop is what was forgotten while other games were trained.",
    ),
    "games-recognition": (
        "Which context the agent believes to be in",
        "One row per context; colors are the games being played. Each game should have a row of "
        "its own.",
    ),
    "games-clips": (
        "The agents at play",
        "The first network of each arm, after training; all arms of a game play side by side.",
    ),
}

LAYOUT = Layout(
    _row,
    part=record(
        arm=one_of(ARM_LABELS),
        seed=integer(),
        games=list_of(short_text, 1, MAX_PANELS),
        schedule=list_of(short_text, 0, MAX_SEGMENTS),  # empty for a random player
        settings=record(segment_steps=integer(1), ewc_start=optional(integer())),
    ),
    files={CLIP_FILES: check_clip},
)


def figures(run: RunDirectory) -> list[Figure]:
    """Return the schedule, the totals, the skills, the scores by game and the contexts."""
    networks = read_networks(run)
    arms, references = continual_networks(networks), References(networks)
    panels: dict[str, list[Panel]] = {}
    if arms:
        learners = [one for found in arms.values() for one in found]
        panels["games-total"] = total_panels(networks, references)
        panels["games-schedule"] = [schedule_panel(learners)]
    if arms and references.complete:
        panels["games-plasticity"] = plasticity_panels(networks, references)
    if networks:
        panels["games-by-game"] = score_panels(networks)
    if recognizing := _recognizing(arms):
        panels["games-recognition"] = [recognition_panel(recognizing)]
    panels["games-clips"] = clip_panels(networks)
    return [Figure(name, *TEXTS[name], found) for name, found in panels.items() if found]


def _recognizing(arms: dict[str, list[Network]]) -> Network | None:
    """Return the first network of the last arm that recognizes its games."""
    found = [learners[0] for arm, learners in arms.items() if ARMS[arm].recognizes]
    return found[-1] if found else None


def draw(run: RunDirectory, kind: str = "png") -> list[Path]:
    """Draw the run's figures from its metrics, and its clips."""
    networks, figures = read_networks(run), run.figures
    arms, references = continual_networks(networks), References(networks)
    files = []
    if arms:
        learners = [one for found in arms.values() for one in found]
        files.append(draw_schedule(learners, figures / f"games-schedule.{kind}"))
        files.append(draw_totals(networks, references, figures / f"games-total.{kind}"))
    if arms and references.complete:
        files.append(draw_plasticity(networks, references, figures / f"games-plasticity.{kind}"))
    if networks:
        files.append(draw_scores(networks, figures / f"games-by-game.{kind}"))
    if recognizing := _recognizing(arms):
        files.append(draw_recognition(recognizing, figures / f"games-recognition.{kind}"))
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
