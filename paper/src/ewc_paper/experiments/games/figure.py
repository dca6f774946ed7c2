"""Games one after another: schedule, totals, skills, scores per game, recognition and clips.

`figures` computes what all of them show, as panels. For each figure there is one function that
makes its panels, `..._panels`, and one that lays them out with matplotlib, `plot_...`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from rich.table import Table

from ewc_paper.experiments.games.clips import CLIP_FILES, check_clip, clip_panels, draw_clips
from ewc_paper.experiments.games.cycles import cycle_panels, last_cycle
from ewc_paper.experiments.games.data import (
    BEFORE_SECOND,
    END,
    FIRST,
    MOMENTS,
    Network,
    References,
    arms_of,
    ceiling,
    continual_networks,
    curves,
    defined,
    moments,
    read_networks,
    score_curve,
    skill_in,
    skills,
    total,
    total_or_nan,
)
from ewc_paper.experiments.games.tables import by_game, sentence, summary
from ewc_paper.experiments.view import MAX_PANELS, MAX_SEGMENTS, Layout, Paper, StoredConfig
from ewc_paper.figures.names import ARM_LABELS, game_marks, game_name
from ewc_paper.figures.panel import (
    BLACK,
    LOOKS,
    RED,
    SOLID,
    Box,
    Dots,
    Figure,
    Level,
    Look,
    Markers,
    Panel,
    Series,
    Values,
)
from ewc_paper.figures.plot import (
    add_game_legend,
    axes,
    game_colors,
    line_style,
    plot_panel,
    save,
    use_short_numbers,
    use_whole_numbers,
)
from ewc_paper.games.config import ARMS, PROTECTED, RANDOM, SINGLE
from ewc_paper.games.schedule import GIVEN
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

LOWEST, HIGHEST = -1.0, 2.0  # skills beyond are drawn at the border
TITLES = {
    FIRST: "learned: end of the first visit",
    BEFORE_SECOND: "kept: before the second visit",
    END: "at the end",
}
SPREAD = 0.6  # of the arms of a game, in rows
UNDEFINED = Look("#999999", SOLID, "x")


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
        train=record(
            step=integer(),
            game=game,
            recognized=steps_by_context,
            segment=optional(integer(0, len(part["schedule"]))),
            score=optional(number()),
            episodes=optional(integer()),
        ),
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
    "games-cycles": (
        "The scores while learning, cycle by cycle",
        "The mean score of the episodes that ended in a visit. Each game counts 1 at most in the "
        "total. Skill is 0 for a random player and 1 for the game's own network in its last visit.",
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
        "The first episode of a test of the first network of each arm. What plain training has "
        "forgotten is in the last row.",
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
    """Return the totals, the schedule, the skills, the scores by game, the contexts, the clips."""
    networks = read_networks(run)
    panels = {**panels_of(networks, in_cycles(run)), "games-clips": clip_panels(networks)}
    texts = dict(TEXTS)
    if marks := game_marks(game for network in networks for game in network.games):
        title, caption = texts["games-schedule"]
        texts["games-schedule"] = title, f"{caption} {'; '.join(marks)}."
    return [Figure(name, *texts[name], shown) for name, shown in panels.items() if shown]


def in_cycles(run: RunDirectory) -> bool:
    """Whether games are visited in the same order again and again, so that cycles say something."""
    return bool(run.config().get("order") == GIVEN)


def panels_of(networks: Sequence[Network], cycles: bool = False) -> dict[str, list[Panel]]:
    """Return the panels of every figure but the clips, by name; a figure with none is left out.

    Args:
        networks: the networks of a run.
        cycles: whether it has a figure of the scores while learning, cycle by cycle.
    """
    references = References(networks)
    panels: dict[str, list[Panel]] = {}
    if continual_networks(networks):
        panels["games-total"] = total_panels(networks, references)
        panels["games-schedule"] = [schedule_panel(networks)]
        if references.complete:
            panels["games-plasticity"] = plasticity_panels(networks, references)
        if cycles:
            panels["games-cycles"] = cycle_panels(networks)
    if networks:
        panels["games-by-game"] = score_panels(networks)
    if recognizing := _recognizing(networks):
        panels["games-recognition"] = [recognition_panel(recognizing)]
    return {name: shown for name, shown in panels.items() if shown}


def _recognizing(networks: Sequence[Network]) -> Network | None:
    """Return the first network of the last arm that recognizes its games."""
    arms = continual_networks(networks)
    recognizing = [learners[0] for arm, learners in arms.items() if ARMS[arm].recognizes]
    return recognizing[-1] if recognizing else None


def draw(run: RunDirectory, kind: str = "png") -> list[Path]:
    """Draw the run's figures from its metrics, and its clips."""
    networks = read_networks(run)
    panels = panels_of(networks, in_cycles(run))
    files = [
        save(plot(panels[name], networks), run.figures / f"{name}.{kind}")
        for name, plot in PLOTS.items()
        if name in panels
    ]
    return files + draw_clips(networks, run.figures / "clips")


def result(run: RunDirectory) -> str:
    """Return how well all games are played at the end."""
    return sentence(read_networks(run))


def table(run: RunDirectory) -> Table:
    """Return the summary of the arms and, if the run can tell skill, the scores by game.

    Before them stand the scores while learning in the last cycle, if it has cycles.
    """
    networks = read_networks(run)
    both = Table.grid()
    if continual_networks(networks):
        if in_cycles(run):
            both.add_row(last_cycle(networks))
        both.add_row(summary(networks))
        if References(networks).complete:
            both.add_row(by_game(networks))
    return both


def schedule_panel(networks: Sequence[Network]) -> Panel:
    """Return which game is trained when; with EWC, a point where a segment ends in protection.

    It is panel A of the paper's figure on Atari.
    """
    learners = [learner for of_arm in continual_networks(networks).values() for learner in of_arm]
    network, steps = learners[0], learners[0].settings["segment_steps"]
    protected = [learner for learner in learners if learner.arm in PROTECTED]
    start = (protected[0].settings.get("ewc_start") or 0) if protected else 0
    trained = dict.fromkeys(network.games, 0)
    boxes, ends = [], []
    for segment, game in enumerate(network.schedule):
        row = network.games.index(game)
        x = (segment * steps, (segment + 1) * steps)
        boxes.append(Box("being trained", BLACK, x, (row - 0.25, row + 0.25)))
        trained[game] += steps
        if protected and trained[game] >= start:
            ends.append((x[1], row))
    look = Look(RED, SOLID, "o")
    return Panel(
        "agent steps",
        "",
        boxes=boxes,
        dots=[Dots("protected by EWC from here on", look, [x], [y]) for x, y in ends],
        y_names=[game_name(game) for game in network.games],
        x_limits=(0, len(network.schedule) * steps),
    )


def plot_schedule(panels: Sequence[Panel], networks: Sequence[Network]) -> Axes:
    """Plot the schedule, and say what its points are if there are any."""
    (panel,) = panels
    ax = plot_panel(axes(6.4, 1.2 + 0.3 * len(panel.y_names)), panel)
    if panel.dots:
        ax.set_title("red point: from here on, EWC protects the game", fontsize=9, loc="left")
    use_short_numbers(ax)
    return ax


def total_panels(networks: Sequence[Network], references: References) -> list[Panel]:
    """Return the total skill over training and beside it the total normalized score.

    The second one is panel B of the paper's figure on Atari; without skill it stands alone. One
    network per game is the ceiling of both.
    """
    panels = [_normalized_panel(networks)]
    if references.complete:
        panels.insert(0, _skill_panel(networks, references))
    return panels


def plot_totals(panels: Sequence[Panel], networks: Sequence[Network]) -> Axes:
    """Plot the totals side by side, with one legend for both."""
    figure, grid = plt.subplots(
        1, len(panels), figsize=(1.6 + 4.8 * len(panels), 3.8), layout="constrained", squeeze=False
    )
    for ax, panel in zip(grid.flat, panels, strict=True):
        plot_panel(ax, panel).set_xlabel("")
        ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
        use_short_numbers(ax)
    figure.supxlabel(panels[0].x_label, fontsize=10)
    handles, labels = grid[0, 0].get_legend_handles_labels()
    columns = 2 if len(panels) == 1 else 4
    figure.legend(handles, labels, loc="outside upper left", frameon=False, ncols=columns)
    first: Axes = grid[0, 0]
    return first


def _skill_panel(networks: Sequence[Network], references: References) -> Panel:
    """Return the total skill; a network per game has 1 in each game trained so far."""
    arms = continual_networks(networks)
    learners = next(iter(arms.values()))
    series = []
    for arm in arms_of(networks):
        if arm == SINGLE:
            most = curves(
                learners, lambda network, test: len(defined(skills(network, test, references)))
            )
            series.append(_series(arm, *most, "none"))
        elif arm in arms:
            totals = curves(
                arms[arm], lambda network, test: total_or_nan(network, test, references)
            )
            series.append(_series(arm, *totals))
    return _total_panel(learners[0], "total skill", "in", series, _left_out(learners, references))


def _left_out(learners: Sequence[Network], references: References) -> str:
    """Say how many games have no skill at the end; nothing if all have."""
    ends = [
        skills(learner, len(learner.schedule), references)
        for learner in learners
        if learner.finished
    ]
    missing = sum(len(end) - len(defined(end)) for end in ends)
    everything = sum(len(end) for end in ends)
    return f"{missing} of {everything} left out at the end: not learned even alone" * bool(missing)


def _normalized_panel(networks: Sequence[Network]) -> Panel:
    """Return the total normalized score, as in the paper."""
    arms = continual_networks(networks)
    learners = next(iter(arms.values()))
    series = []
    for arm in arms_of(networks):
        if arm == SINGLE:
            series += _ceiling(networks, learners)
        elif arm in arms:
            series.append(
                _series(arm, *curves(arms[arm], lambda network, at: total(network.tests[at])))
            )
    return _total_panel(learners[0], "total normalized score", "of", series)


def _total_panel(
    learner: Network, measure: str, joined: str, series: list[Series], note: str = ""
) -> Panel:
    games, steps = len(learner.games), learner.settings["segment_steps"]
    return Panel(
        "agent steps; tested on all games after each segment",
        f"{measure} {joined} {games} games",
        title=measure,
        series=series,
        borders=[segment * steps for segment in range(1, len(learner.schedule))],
        y_limits=(None, 1.03 * games),  # a marker at the highest total is drawn whole
        note=note,
    )


def _series(arm: str, steps: Sequence[float], values: Values, markers: Markers = "all") -> Series:
    return Series(ARM_LABELS[arm], LOOKS[arm], steps, values, markers)


def _ceiling(networks: Sequence[Network], learners: Sequence[Network]) -> list[Series]:
    """Return the line of one network per game, if they have come far enough."""
    ceilings = {learner.seed_name: ceiling(networks, learner) for learner in learners}
    limits = {seed: limit for seed, limit in ceilings.items() if limit is not None}
    if not limits:
        return []
    segments = range(len(next(iter(limits.values()))))
    steps = [segment * learners[0].settings["segment_steps"] for segment in segments]
    return [_series(SINGLE, steps, limits, "none")]


def plasticity_panels(networks: Sequence[Network], references: References) -> list[Panel]:
    """Return the skills at each moment that was reached, one panel each, with one row per game.

    They belong together: a network that froze keeps everything, but learns nothing. A small point
    is a seed, a large one the mean.
    """
    arms = continual_networks(networks)
    learners = [learner for of_arm in arms.values() for learner in of_arm]
    games = list(dict.fromkeys(game for learner in learners for game in learner.games))
    shown = [
        moment
        for moment in MOMENTS
        if any(moment in moments(learner, game) for learner in learners for game in learner.games)
    ]
    return [_moment_panel(moment, games, arms, references) for moment in shown]


def _moment_panel(
    moment: str, games: Sequence[str], arms: dict[str, list[Network]], references: References
) -> Panel:
    """Return the skills at one moment."""
    offsets = np.linspace(-0.5, 0.5, len(arms)) * SPREAD if len(arms) > 1 else [0.0]
    dots: list[Dots] = []
    for (arm, networks), offset in zip(arms.items(), offsets, strict=True):
        for row, game in enumerate(games):
            tests = [
                (network, moments(network, game).get(moment))
                for network in networks
                if game in network.games
            ]
            in_game = [skill_in(network, game, test, references) for network, test in tests if test]
            dots += _skill_dots(row + float(offset), arm, in_game)
    return Panel(
        f"skill; beyond {LOWEST:g} and {HIGHEST:g} at the border, × where it is undefined",
        "",
        title=TITLES[moment],
        dots=dots,
        levels=[
            Level(ARM_LABELS[reference], LOOKS[reference], place, upright=True)
            for place, reference in ((1, "single"), (0, "random"))
        ],
        x_limits=(LOWEST - 0.15, HIGHEST + 0.15),
        y_names=[game_name(game) for game in games],
    )


def _skill_dots(y: float, arm: str, in_game: Sequence[float | None]) -> Iterator[Dots]:
    """Yield the skills of one arm in one game: their mean, and a small point per seed."""
    known = [skill for skill in in_game if skill is not None]
    label, look = ARM_LABELS[arm], LOOKS[arm]
    if in_game and not known:
        yield Dots("undefined", UNDEFINED, [0.0], [y], small=True)
    if len(known) > 1:
        yield Dots(label, look, np.clip(known, LOWEST, HIGHEST).tolist(), [y] * len(known), True)
    if known:
        yield Dots(label, look, [float(np.clip(np.mean(known), LOWEST, HIGHEST))], [y])


def plot_plasticity(panels: Sequence[Panel], networks: Sequence[Network]) -> Axes:
    """Plot the panels side by side, with one legend for all."""
    arms, rows = list(continual_networks(networks)), len(panels[0].y_names)
    height = 1.3 + (0.2 + 0.16 * len(arms)) * rows
    size = (1.6 + 2.7 * len(panels), max(2.4, height))
    figure, grid = plt.subplots(
        1, len(panels), figsize=size, layout="constrained", squeeze=False, sharey=True
    )
    for ax, panel in zip(grid.flat, panels, strict=True):
        plot_panel(ax, panel).set_title(panel.title, fontsize=9)
        ax.set(xlabel="", xticks=np.arange(LOWEST, HIGHEST + 1))
        ax.tick_params(labelsize=8)
        for border in range(1, rows):
            ax.axhline(border - 0.5, color="0.9", linewidth=0.8, zorder=0)
    handles = [
        *(Line2D([], [], color=LOOKS[a].color, marker=LOOKS[a].marker, linestyle="") for a in arms),
        *(Line2D([], [], **line_style(arm)) for arm in ("single", "random")),
    ]
    labels = [ARM_LABELS[arm] for arm in (*arms, "single", "random")]
    columns = min(len(labels), 4 if len(panels) > 2 else 3)  # an entry is nearly as wide as a panel
    figure.legend(
        handles, labels, loc="outside upper left", frameon=False, ncols=columns, fontsize=8
    )
    figure.supxlabel(panels[0].x_label, fontsize=9)
    first: Axes = grid[0, 0]
    return first


def plot_cycles(panels: Sequence[Panel], networks: Sequence[Network]) -> Axes:
    """Plot the totals by cycle beside the skills by game, with one legend for both."""
    rows = len(panels[-1].y_names)
    size = (2.0 + 4.2 * len(panels), max(4.0, 1.6 + 0.45 * rows))
    figure, grid = plt.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    entries: dict[str, Artist] = {}
    for ax, panel in zip(grid.flat, panels, strict=True):
        plot_panel(ax, panel).set_title(panel.title, fontsize=9)
        handles, labels = ax.get_legend_handles_labels()
        entries = dict(zip(labels, handles, strict=True)) | entries
        if panel.y_names:
            for border in range(1, rows):
                ax.axhline(border - 0.5, color="0.9", linewidth=0.8, zorder=0)
        else:
            use_whole_numbers(ax.xaxis)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside upper left",
        frameon=False,
        ncols=3,
        fontsize=8,
    )
    first: Axes = grid[0, 0]
    return first


def score_panels(networks: Sequence[Network]) -> list[Panel]:
    """Return each game's raw score over the steps in it; a vertical drop is what was forgotten.

    Skill is the height between the lines of the random player and of the game's own network.
    """
    games = sorted({game for network in networks for game in network.games})
    return [
        _score_panel(game, [network for network in networks if game in network.games])
        for game in games
    ]


def _score_panel(game: str, networks: Sequence[Network]) -> Panel:
    series, levels = [], []
    for arm in arms_of(networks):
        playing = [network for network in networks if network.arm == arm]
        if arm == RANDOM:
            scores = np.concatenate([network.tests[0]["scores"][game] for network in playing])
            levels.append(Level(ARM_LABELS[arm], LOOKS[arm], float(np.mean(scores))))
        else:
            series.append(_score_series(arm, playing, game))
    return Panel(
        "agent steps in the game", "score", title=game_name(game), series=series, levels=levels
    )


def _score_series(arm: str, networks: Sequence[Network], game: str) -> Series:
    """Return the scores of an arm as far as all its seeds have come."""
    by_seed = {network.seed_name: score_curve(network, game) for network in networks}
    reached = min(len(steps) for steps, _ in by_seed.values())
    steps = np.mean([steps[:reached] for steps, _ in by_seed.values()], axis=0).tolist()
    values = {seed: values[:reached] for seed, (_, values) in by_seed.items()}
    return Series(ARM_LABELS[arm], LOOKS[arm], steps, values)


def plot_scores(panels: Sequence[Panel], networks: Sequence[Network]) -> Axes:
    """Plot the panels in a grid, with one legend for all."""
    arms, columns = arms_of(networks), min(len(panels), 4)
    rows = -(-len(panels) // columns)
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(max(2.4 * columns, 5.2), 0.7 + 2.1 * rows),
        layout="constrained",
        squeeze=False,
    )
    for ax, panel in zip(grid.flat, panels, strict=False):
        plot_panel(ax, panel).set_title(panel.title, fontsize=9)
        ax.set(xlabel="", ylabel="")
        use_short_numbers(ax)
        ax.tick_params(labelsize=8)
    for ax in grid.flat[len(panels) :]:
        ax.set_visible(False)
    figure.legend(
        [Line2D([], [], **line_style(arm)) for arm in arms],
        [ARM_LABELS[arm] for arm in arms],
        loc="outside upper left",
        frameon=False,
        ncols=max(columns, 2),  # an entry is as wide as a panel
        fontsize=9,
    )
    figure.supxlabel(panels[0].x_label, fontsize=9)
    figure.supylabel(panels[0].y_label, fontsize=9)
    first: Axes = grid[0, 0]
    return first


def recognition_panel(network: Network) -> Panel:
    """Return which context was reported at each step of training: one row per context.

    Boxes have the color of the game being played, and the height of the context's share of the
    steps.
    """
    colors = game_colors(network.games)
    contexts = max((int(c) for row in network.training for c in row["recognized"]), default=0) + 1
    boxes, start = [], 0
    for row in network.training:
        steps = sum(row["recognized"].values())
        for context, taken in row["recognized"].items():
            half = max(0.08, 0.8 * taken / steps) / 2  # even a single step is visible
            y = (int(context) - half, int(context) + half)
            label, color = game_name(row["game"]), colors[row["game"]]
            boxes.append(Box(label, color, (start, row["step"]), y))
        start = row["step"]
    return Panel(
        "agent steps",
        "recognized context",
        boxes=boxes,
        y_names=[str(context) for context in range(contexts)],
        x_limits=(0, len(network.schedule) * network.settings["segment_steps"]),
    )


def plot_recognition(panels: Sequence[Panel], networks: Sequence[Network]) -> Axes:
    """Plot the recognized contexts, with a legend of the games."""
    (panel,) = panels
    network = _recognizing(networks)
    assert network is not None
    colors = game_colors(network.games)
    height = max(2.0, 0.8 + 0.2 * len(colors), 1.0 + 0.3 * len(panel.y_names))
    ax = plot_panel(axes(7.4, height), panel)
    use_short_numbers(ax)
    add_game_legend(ax, colors)
    return ax


# By name, how a figure is laid out; in the order in which files are written.
PLOTS = {
    "games-schedule": plot_schedule,
    "games-total": plot_totals,
    "games-plasticity": plot_plasticity,
    "games-cycles": plot_cycles,
    "games-by-game": plot_scores,
    "games-recognition": plot_recognition,
}
