"""Run directories of games as a run would leave them, with scores from a simple rule."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ewc_paper.games.measurements import untrained_row
from ewc_paper.runs.directory import MetricsRow, RunDirectory

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


def write_clip(run: RunDirectory, name: str, game: str, length: int, side: int = 10) -> None:
    frames = np.zeros((length, side, side), np.uint8)
    frames[np.arange(length), np.arange(length) % side] = 255
    folder = run.part(name).path / "clips"
    folder.mkdir(exist_ok=True)
    np.savez_compressed(folder / f"{game}.npz", frames=frames)


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
