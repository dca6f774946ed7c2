"""A budget against a search for λ on a Q-network: two MinAtar tasks, one after the other.

    python -m benchmarks.studies.budget_games             # two seeds
    python -m benchmarks.studies.budget_games --table     # what is there so far

One network learns the first task and then the second, with each λ and with the default budget,
beside plain training. Skill is 0 for a random player and 1 for a network that learned that task
alone, of the same seed. Nothing was chosen on these tasks: the default budget comes from permuted
MNIST and a language model. Each network that is finished is a line of the file `--results`.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.measure import one_thread
from benchmarks.studies.methods import percent
from ewc_paper.experiments.games.run import Games
from ewc_paper.games.agent import Agent
from ewc_paper.games.evaluation import make_random
from ewc_paper.games.training import make_continual

GAMES = ("minatar/breakout", "minatar/space_invaders:rotate90,actions1,channels1")
# No gates, which protect tasks too, and the Fisher in its own unit.
CHANGES: dict[str, Any] = {
    **{"games": GAMES, "network": "minatar-wide", "normalize": None, "floor": 0.0},
    "table_episodes": 100,
}
STRENGTHS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6)
LINES = ("random", "single", "plain", "default", *(f"λ = {value:g}" for value in STRENGTHS))
Row = dict[str, Any]  # line, seed, and the scores of all episodes by game


def scores(line: str, seed: int, settings: Games) -> dict[str, list[float]]:
    """Train a network of a line, and return its scores in both tasks at the end."""
    if line == "random":
        return _alone(make_random, "random", seed, settings, visits=0)
    if line == "single":
        return _alone(make_continual, "single", seed, settings, visits=1)
    arm = "plain" if line == "plain" else "ewc-labels"
    if line.startswith("λ"):
        settings = replace(settings, strength=float(line.removeprefix("λ = ")))
    learner = make_continual(settings.part_config(arm, seed, GAMES, GAMES))
    if line == "default":
        assert isinstance(learner.agent, Agent)  # one without gates
        learner.agent.memory.budget = "auto"
    return _last_scores(learner)


def _alone(
    make: Any, arm: str, seed: int, settings: Games, *, visits: int
) -> dict[str, list[float]]:
    """Return the scores of one player per task."""
    last_scores: dict[str, list[float]] = {}
    for game in GAMES:
        last_scores |= _last_scores(make(settings.part_config(arm, seed, [game], [game] * visits)))
    return last_scores


def _last_scores(player: Any) -> dict[str, list[float]]:
    tests = [row for row in player.run() if row and row["kind"] == "test"]
    scores: dict[str, list[float]] = tests[-1]["scores"]
    return scores


def skills(rows: Sequence[Row], line: str, seed: int) -> list[float] | None:
    """Return the skills in both tasks, None if something that they need is missing."""
    by_line = {row["line"]: row["scores"] for row in rows if row["seed"] == seed}
    if not {"random", "single", line} <= by_line.keys():
        return None
    means = {name: [mean(by_line[name][game]) for game in GAMES] for name in (*LINES[:2], line)}
    triples = zip(means[line], means["random"], means["single"], strict=True)
    return [(score - low) / (high - low) for score, low, high in triples]


def table(rows: Sequence[Row], seeds: Sequence[int]) -> Iterator[str]:
    """Yield the lines of the table, in Markdown: skills in percent, over seeds."""
    yield "| MinAtar | mean of both tasks | first task | second task |"
    yield "| --- | --- | --- | --- |"
    for line in LINES:
        by_seed = [skills(rows, line, seed) for seed in seeds]
        complete = [pair for pair in by_seed if pair is not None]
        if len(complete) < len(seeds):
            continue
        first, second = ([pair[place] for pair in complete] for place in range(2))
        both = [mean(pair) for pair in complete]
        yield f"| {line} | {percent(both)} | {percent(first)} | {percent(second)} |"


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a file, none if it does not exist."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def is_finished(cell: tuple[str, int], file: Path) -> bool:
    """Return whether a line was finished for a seed before."""
    return any((row["line"], row["seed"]) == cell for row in read_rows(file))


def main(arguments: list[str] | None = None) -> None:
    """Train what is missing and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.budget_games",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds (default: 2)")
    parser.add_argument("--steps", type=int, default=20_000, help="per task (default: 20,000)")
    parser.add_argument("--lines", nargs="+", choices=LINES, default=LINES, help="what to train")
    parser.add_argument("--table", action="store_true", help="only show what is there")
    parser.add_argument("--results", type=Path, default=Path("docs/results/budget-games.jsonl"))
    options = parser.parse_args(arguments)
    settings = Games.preset("laptop", **CHANGES, segment_steps=options.steps)
    seeds = range(options.seeds)
    one_thread()
    for seed in () if options.table else seeds:
        for line in options.lines:
            if any(
                (row["line"], row["seed"]) == (line, seed) for row in read_rows(options.results)
            ):
                continue
            row = {"line": line, "seed": seed, "scores": scores(line, seed, settings)}
            with options.results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(line, seed, {game: mean(own) for game, own in row["scores"].items()})
    print("\n".join(table(read_rows(options.results), seeds)))


if __name__ == "__main__":
    main()
