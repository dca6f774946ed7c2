"""Scores while learning, of a run that visits its games in the same order again and again.

The score of a visit is the mean raw score of the episodes that ended in it, with all that the agent
explored. What counts is the last cycle: a network that remembers begins a visit where it stopped in
the one before. Beside it are a network per game over all its visits, and one that starts in the
last cycle ("from scratch"), which is the first visit of the former.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from rich.table import Table

from ewc_paper.experiments.games.data import Network, References, arms_of, clipped_total
from ewc_paper.figures.names import ARM_LABELS, game_name, mean_and_deviation
from ewc_paper.figures.panel import BLACK, LOOKS, SOLID, Dots, Level, Look, Panel, Series
from ewc_paper.games.config import ALONE, RANDOM, SINGLE
from ewc_paper.games.scores import normalized

SCRATCH = "scratch"
LABELS = {**ARM_LABELS, SCRATCH: "one network per game, from scratch"}
CYCLE_LOOKS = {**LOOKS, SCRATCH: Look(BLACK, SOLID, "h")}
LOWEST, HIGHEST = -1.0, 2.0  # skills beyond are drawn at the border

Scores = dict[int, dict[str, float]]  # by seed and game
Measure = Callable[[str, int, float], float | None]  # of a game, a seed and a score


def visit_score(network: Network, game: str, cycle: int) -> float | None:
    """Return the mean score while learning in a visit to a game; None if no episode ended in it.

    Args:
        network: a network that learns.
        game: the game.
        cycle: number of the visit, from 0. None too if it is not complete.
    """
    visits = [segment for segment, trained in enumerate(network.schedule) if trained == game]
    if cycle >= len(visits) or len(network.tests) <= visits[cycle] + 1:
        return None
    rows = [row for row in network.training if row["segment"] == visits[cycle] and row["episodes"]]
    episodes = [row["episodes"] for row in rows]
    return float(np.average([row["score"] for row in rows], weights=episodes)) if rows else None


def number_of_cycles(networks: Sequence[Network]) -> int:
    """Return how often each game is visited."""
    return max((len(n.schedule) // len(n.games) for n in networks), default=0)


def scores_in(networks: Sequence[Network], cycle: int) -> dict[str, Scores]:
    """Return the scores while learning in one cycle, by arm, references first.

    The random player's are those of all its episodes, the same for all seeds.
    """
    found: dict[str, Scores] = {RANDOM: {}, SCRATCH: {}, SINGLE: {}}
    for arm in arms_of(networks):
        found.setdefault(arm, {})
    references = References(networks)
    for network in networks:
        for game in network.games:
            places = [(network.arm, cycle), (SCRATCH, 0)] if network.arm == SINGLE else []
            for arm, at in places or [(network.arm, cycle)]:
                if (score := visit_score(network, game, at)) is not None:
                    found[arm].setdefault(network.seed, {})[game] = score
            if (random := references.random(game)) is not None:
                found[RANDOM].setdefault(network.seed, {})[game] = random.mean
    return {arm: scores for arm, scores in found.items() if scores}


def human(game: str, seed: int, score: float) -> float:
    """Return the human-normalized score."""
    return normalized(game, score)


def skill_by(scores: dict[str, Scores]) -> Measure:
    """Return the measure of skill in a cycle: 0 is the random player, 1 the game's own network."""

    def skill(game: str, seed: int, score: float) -> float | None:
        random, own = (scores.get(arm, {}).get(seed, {}).get(game) for arm in (RANDOM, SINGLE))
        if random is None or own is None or own <= random:
            return None
        return (score - random) / (own - random)

    return skill


def totals(scores: Scores, games: Sequence[str], measure: Measure) -> dict[int, float]:
    """Return the total over the games by seed, each clipped at 1; of seeds with all games only.

    Games in which the measure is undefined count nothing.
    """
    return {
        seed: clipped_total(
            value for game in games if (value := measure(game, seed, of_seed[game])) is not None
        )
        for seed, of_seed in scores.items()
        if all(game in of_seed for game in games)
    }


def games_of(networks: Sequence[Network]) -> list[str]:
    """Return the games in the order of the schedule."""
    learners = [network for network in networks if network.arm not in ALONE]
    return list(dict.fromkeys(game for learner in learners for game in learner.schedule))


def last_cycle(networks: Sequence[Network]) -> Table:
    """Return the scores while learning in the last cycle, by game and arm, and their totals."""
    games = games_of(networks)
    scores = scores_in(networks, number_of_cycles(networks) - 1)
    skill = skill_by(scores)
    table = Table(
        "game",
        title="mean raw score (skill) while learning in the last cycle, mean over seeds",
        caption="score: of the episodes that ended in the visit, exploration included\n"
        "skill: 0 for a random player, 1 for the game's own network in its last visit; – where it "
        "is no better than the random player\n"
        f"{LABELS[SCRATCH]}: one that starts in the last cycle\n"
        "totals: each game counts 1 at most",
        caption_justify="left",
    )
    for arm in scores:
        table.add_column(LABELS[arm], justify="right")
    for number, game in enumerate(games):
        cells = [_cell(of_arm, game, skill) for of_arm in scores.values()]
        table.add_row(game_name(game), *cells, end_section=number == len(games) - 1)
    named: dict[str, Measure] = {"total, human-normalized": human, "total skill": skill}
    for name, measure in named.items():
        by_seed = [list(totals(of_arm, games, measure).values()) for of_arm in scores.values()]
        table.add_row(name, *(mean_and_deviation(values) if values else "" for values in by_seed))
    return table


def _cell(scores: Scores, game: str, skill: Measure) -> str:
    pairs = [(seed, of_seed[game]) for seed, of_seed in scores.items() if game in of_seed]
    if not pairs:
        return ""
    known = [one for seed, score in pairs if (one := skill(game, seed, score)) is not None]
    mean = float(np.mean([score for _, score in pairs]))
    return f"{mean:,.{0 if abs(mean) >= 100 else 1}f} ({f'{np.mean(known):.2f}' if known else '–'})"


def cycle_panels(networks: Sequence[Network]) -> list[Panel]:
    """Return the total score while learning by cycle, and the skill by game in the last one."""
    games, cycles = games_of(networks), number_of_cycles(networks)
    panels = [_totals_panel(networks, games, cycles), _skill_panel(networks, games, cycles - 1)]
    return [panel for panel in panels if panel.series or panel.dots]


def _totals_panel(networks: Sequence[Network], games: Sequence[str], cycles: int) -> Panel:
    by_arm: dict[str, dict[int, dict[int, float]]] = defaultdict(dict)
    for cycle in range(cycles):
        for arm, scores in scores_in(networks, cycle).items():
            by_arm[arm][cycle] = totals(scores, games, human)
    levels = [
        Level(LABELS[arm], CYCLE_LOOKS[arm], float(np.mean(list(of_seeds.values()))))
        for arm in (RANDOM, SCRATCH)
        if (of_seeds := by_arm.pop(arm, {}).get(cycles - 1))
    ]
    series = []
    for arm, of_arm in by_arm.items():
        reached = [cycle for cycle in of_arm if of_arm[cycle]]
        seeds = sorted({seed for cycle in reached for seed in of_arm[cycle]})
        if reached:
            values = {
                f"seed {seed}": [of_arm[cycle].get(seed, float("nan")) for cycle in reached]
                for seed in seeds
            }
            x = [cycle + 1.0 for cycle in reached]
            series.append(Series(LABELS[arm], CYCLE_LOOKS[arm], x, values))
    return Panel(
        "cycle",
        f"total human-normalized score of {len(games)} games",
        title="while learning",
        series=series,
        levels=levels if series else [],
    )


def _skill_panel(networks: Sequence[Network], games: Sequence[str], cycle: int) -> Panel:
    scores = scores_in(networks, cycle)
    skill = skill_by(scores)
    arms = [arm for arm in scores if arm not in ALONE]
    offsets = np.linspace(-0.3, 0.3, len(arms)) if len(arms) > 1 else [0.0]
    dots = []
    for arm, offset in zip(arms, offsets, strict=True):
        for row, game in enumerate(games):
            pairs = [(s, of_seed[game]) for s, of_seed in scores[arm].items() if game in of_seed]
            known = [one for seed, score in pairs if (one := skill(game, seed, score)) is not None]
            y, look = row + float(offset), CYCLE_LOOKS[arm]
            at = np.clip(known, LOWEST, HIGHEST).tolist()
            if len(known) > 1:
                dots.append(Dots(LABELS[arm], look, at, [y] * len(known), True))
            if known:
                mean = float(np.clip(np.mean(known), LOWEST, HIGHEST))
                dots.append(Dots(LABELS[arm], look, [mean], [y]))
    return Panel(
        f"skill; beyond {LOWEST:g} and {HIGHEST:g} at the border",
        "",
        title="last cycle, by game",
        dots=dots,
        levels=[
            Level(LABELS[arm], CYCLE_LOOKS[arm], place, upright=True)
            for place, arm in ((1.0, SINGLE), (0.0, RANDOM))
        ],
        x_limits=(LOWEST - 0.15, HIGHEST + 0.15),
        y_names=[game_name(game) for game in games],
    )
