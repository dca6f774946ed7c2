"""A small agent, a game it can play, and run directories of games as a run would leave them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ewc.memory import Curvature
from ewc.recognition import ScreenRecognizer
from ewc_paper.games.agent import Agent
from ewc_paper.games.config import AgentConfig
from ewc_paper.games.evaluation import untrained_row
from ewc_paper.games.gated_agent import GatedAgent
from ewc_paper.games.replay import Transitions
from ewc_paper.games.worlds.game import Frame, GameStep
from ewc_paper.runs.directory import MetricsRow, RunDirectory

STATE_SHAPE, ACTIONS = (10, 10, 10), 6


SMALL: dict[str, Any] = {"network": "minatar", "history": 1, "batch_size": 8}


def make_agent(wells: Curvature = "diagonal", **options: Any) -> Agent:
    config = AgentConfig(**{**SMALL, **options})
    return Agent(config, STATE_SHAPE, ACTIONS, seed=0, wells=wells)


def make_gated_agent(wells: Curvature = "diagonal", **options: Any) -> GatedAgent:
    given = {**SMALL, "gates": 0.5, "filter_gates": 0.5, "optimizer": "adam", **options}
    return GatedAgent(AgentConfig(**given), STATE_SHAPE, ACTIONS, seed=0, wells=wells)


def make_transitions(seed: int = 0, count: int = 8) -> Transitions:
    random = np.random.default_rng(seed)
    states = random.integers(0, 256, (2, count, *STATE_SHAPE), dtype=np.uint8)
    return Transitions(
        states[0],
        random.integers(0, ACTIONS, count),
        random.standard_normal(count).astype(np.float32),
        states[1],
        np.where(random.random(count) < 0.3, 0, 0.99).astype(np.float32),
    )


class CountingGame:
    """A game of `length` steps with a reward of 1 each, and 2 for the last; frames count them."""

    frame_shape, num_actions = STATE_SHAPE, ACTIONS

    def __init__(self, length: int, *, truncated: bool = False) -> None:
        self.length, self.truncated, self.steps = length, truncated, 0
        self.seeds: list[int] = []

    def reset(self, seed: int) -> Frame:
        self.seeds.append(seed)
        self.steps = 0
        return np.zeros(STATE_SHAPE, np.uint8)

    def step(self, action: int) -> GameStep:
        assert self.steps < self.length, "played on after its end"
        self.steps += 1
        over = self.steps == self.length
        frame = np.full(STATE_SHAPE, self.steps, np.uint8)
        return GameStep(frame, 1.0 + over, over and not self.truncated, over and self.truncated)


class Merging(ScreenRecognizer):
    """Returns the tasks of a script, one per frame, and reports the merges that come with them."""

    def __init__(self, script: list[tuple[int, list[tuple[int, int]]]], **settings: Any) -> None:
        super().__init__(**settings)
        self.script = script

    def observe(self, frame: NDArray[np.uint8]) -> int:
        task, self.merged = self.script.pop(0)
        self.decided = True
        return task


STEPS = 1000
ROWS = 4  # of training, per segment


def write_network(
    run: RunDirectory,
    name: str,
    arm: str,
    seed: int,
    games: Sequence[str],
    schedule: Sequence[str],
    kept: float,
    level: float = 0.9,
) -> None:
    """Write a network that plays a game at `level` once trained, times `kept` per later segment."""
    part = run.part(name)
    part.start(
        {
            "arm": arm,
            "seed": seed,
            "games": list(games),
            "schedule": list(schedule),
            "settings": {"segment_steps": STEPS} | ({"ewc_start": STEPS} if "ewc" in arm else {}),
        }
    )
    for row in rows(games, schedule, kept, level):
        part.append(row)


def rows(
    games: Sequence[str], schedule: Sequence[str], kept: float, level: float
) -> Iterator[MetricsRow]:
    yield row_of_a_test(games, schedule, 0, kept, level)
    for segment, game in enumerate(schedule):
        for number in range(1, ROWS + 1):
            yield training_row(games, schedule, segment, number)
        yield {"kind": "fisher", "step": (segment + 1) * STEPS, "context": 0, "trace": 1.0}
        assert game in games
        yield row_of_a_test(games, schedule, segment + 1, kept, level)


def training_row(
    games: Sequence[str], schedule: Sequence[str], segment: int, number: int
) -> MetricsRow:
    """In the first tenth of a segment's first row, the recognizer reports the previous game."""
    steps, game = STEPS // ROWS, schedule[segment]
    context, before = (str(games.index(schedule[max(0, at)])) for at in (segment, segment - 1))
    late = steps // 10 if number == 1 and before != context else 0
    recognized = {context: steps - late} | ({before: late} if late else {})
    return {
        "kind": "train",
        "step": segment * STEPS + number * steps,
        "segment": segment,
        "game": game,
        "steps_in_game": number * steps,
        "context": int(context),
        "score": 1.0,
        "episodes": 3,
        "loss": 0.1,
        "epsilon": 0.1,
        "recognized": recognized,
    }


def row_of_a_test(
    games: Sequence[str], schedule: Sequence[str], done: int, kept: float, level: float
) -> MetricsRow:
    trained = list(schedule[:done])
    normalized = {}
    for game in games:
        since = trained[::-1].index(game) if game in trained else None
        normalized[game] = 0.0 if since is None else level * kept**since
    seen = [game for game in games if game in trained]
    contexts = {game: str(number) for number, game in enumerate(games)}
    return {
        "kind": "test",
        "step": done * STEPS,
        "segment": done,
        "game": trained[-1] if trained else None,
        "steps_in": {game: trained.count(game) * STEPS for game in games},
        "scores": {game: [99 * value, 101 * value] for game, value in normalized.items()},
        "normalized": normalized,
        "agreement": dict.fromkeys(seen, kept),
        "regret": dict.fromkeys(seen, 1 - kept),
        # one step in ten is taken for a context that no game has
        "recognized": {game: {contexts[game]: 90, "99": 10} for game in games},
    }


def write_random_player(run: RunDirectory, game: str, seed: int, scores: list[float]) -> None:
    part, settings = run.part(f"random-{game}-seed{seed}"), {"segment_steps": STEPS, "ewc_start": 0}
    start = {"arm": "random", "seed": seed, "games": [game], "schedule": [], "settings": settings}
    part.start(start)
    part.append(untrained_row({game: scores}))


def write_clip(
    run: RunDirectory, name: str, game: str, length: int, side: int = 10, folder: str = "clips"
) -> None:
    frames = np.zeros((length, side, side), np.uint8)
    frames[np.arange(length), np.arange(length) % side] = 255
    place = run.part(name).path / folder
    place.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(place / f"{game}.npz", frames=frames)


ARMS = ("plain", "ewc-labels", "ewc-fmn", "single", "random")  # of `make_games`


def make_games(path: Path) -> RunDirectory:
    """Two games in the order A B B A, two seeds.

    The skill of a network in a game is its level over 0.95, that of the game's own network.
    """
    games, schedule = ["Pong", "CrazyClimber"], ["Pong", "CrazyClimber", "CrazyClimber", "Pong"]
    run = RunDirectory(path)
    run.start({"experiment": "games"})
    for arm, kept in {"plain": 0.5, "ewc-labels": 1.0, "ewc-fmn": 0.8}.items():
        for seed in (0, 1):
            level = 0.9 + 0.1 * seed
            write_network(run, f"{arm}-seed{seed}", arm, seed, games, schedule, kept, level)
    for game in games:
        for seed in (0, 1):
            name = f"single-{game}-seed{seed}"
            write_network(run, name, "single", seed, [game], [game] * 2, 1.0, 0.95)
            write_random_player(run, game, seed, [-1.0, 1.0] * 50)
    write_clip(run, "plain-seed0", "Pong", 4)
    write_clip(run, "ewc-fmn-seed0", "Pong", 7)
    return run


def make_gated_games(directory: Path, names: list[str], visits: int = 1) -> RunDirectory:
    """Write a run with all arms of the presets that have gates."""
    run = RunDirectory(directory)
    run.start({"experiment": "games"})
    for arm in ("gates", "plain", "ewc-gates-labels", "ewc-gates-fmn"):
        write_network(run, arm, arm, 0, names, names * visits, kept=0.5)
    for game in names:
        write_network(run, f"single-{game}", "single", 0, [game], [game] * visits, kept=1.0)
        write_random_player(run, game, 0, [3.0])
    return run
