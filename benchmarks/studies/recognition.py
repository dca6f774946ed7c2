"""How well recognizers tell Atari games apart.

    python -m benchmarks.studies.recognition --help

Each set of games is visited in two rounds of random order, and a recognizer that has seen nothing
before is shown the frames (see `RecordedFrames`). A task belongs to the game that was played in
most of its observations. When tasks were merged, all their observations count for the one left.
"""

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ewc.recognition import ForgetMeNot, ScreenRecognizer
from ewc_paper.experiments.recognition.run import Player, networks_by_game
from ewc_paper.games.schedule import segments
from ewc_paper.games.worlds.game import RunningGame
from ewc_paper.seeding import derive_seed

Frames = NDArray[np.uint8]

COPIES, SIZE, MAX_EPISODE_STEPS = 4, 42, 27_000
REDRAW = {"random": 1.0, "persistent": 0.05}  # by player: probability of another action per step
TRAINED = "trained"
PLAYERS = (*REDRAW, TRAINED)


class PlaysCopies(Protocol):
    """A player of copies of one game."""

    game: RunningGame

    def step(self) -> None:
        """Take one action in each copy."""


class RecordedFrames:
    """Visits of one player to games, kept as files of uint8 [observations, size, size].

    A visit is a number of agent steps of four copies of a game, of which a recognizer sees one
    frame per row of steps, of each copy in turn (see `RunningGame.frame_in_turn`). The players:

    - `random` draws every action uniformly.
    - `persistent` repeats the action of each copy, and draws another with probability 1/20 per
      step. It gets further in many games.
    - `trained` is the network of a run of `games` that was trained on the game alone. One action in
      twenty is random.

    Args:
        folder: where the files are.
        player: one of PLAYERS.
        agents: for trained players, the run directory of `games` that has their networks.
    """

    def __init__(self, folder: Path, player: str, agents: Path | None = None) -> None:
        self.folder, self.player, self.agents = folder / player, player, agents

    def visit(self, game: str, number: int, agent_steps: int) -> Frames:
        """Return the frames of a visit, which is played if it has not been recorded yet."""
        file = self.folder / f"{game}-{agent_steps}-{number}.npy"
        if not file.exists():
            seed = derive_seed(0, self.player, game, agent_steps, number)
            frames = record(self._make_player(game, seed), agent_steps // COPIES)
            self.folder.mkdir(parents=True, exist_ok=True)
            unfinished = file.with_suffix(".unfinished.npy")
            np.save(unfinished, frames)
            unfinished.rename(file)
        frames_of_visit: Frames = np.load(file)
        return frames_of_visit

    def _make_player(self, game: str, seed: int) -> PlaysCopies:
        if self.player == TRAINED:
            return trained_player(game, seed, self.agents)
        return RedrawingPlayer(game, seed, REDRAW[self.player])


def trained_player(game: str, seed: int, agents: Path | None) -> Player:
    """Return the network that was trained on this game alone, as a player of copies of it."""
    options = {
        "agents": str(agents) if agents else None,
        "environments": COPIES,
        "max_episode_steps": MAX_EPISODE_STEPS,
        "epsilon": 0.05,
        "size": SIZE,
    }
    player = Player(options, game, seed)
    size = player.game.frames.shape[-1]
    if player.agent is None or size != SIZE:
        raise ValueError(f"expected a network trained on frames of {SIZE}x{SIZE}, got {agents}")
    return player


class RedrawingPlayer:
    """Repeats the action of each copy, and draws another with a given probability per step.

    Args:
        game: the name of an Atari game.
        seed: where all randomness comes from.
        redraw: the probability.
    """

    def __init__(self, game: str, seed: int, redraw: float) -> None:
        self.game = RunningGame(
            game, COPIES, seed=seed, size=SIZE, max_episode_steps=MAX_EPISODE_STEPS, history=1
        )
        self._random = np.random.default_rng(derive_seed(seed, "actions"))
        self._redraw = redraw
        self._actions = self._drawn()

    def _drawn(self) -> NDArray[np.int64]:
        return self._random.integers(0, self.game.num_actions, COPIES)

    def step(self) -> None:
        """Take one action in each copy."""
        drawn = self._drawn()
        self._actions = np.where(self._random.random(COPIES) < self._redraw, drawn, self._actions)
        self.game.step(self._actions)


def record(player: PlaysCopies, rows: int) -> Frames:
    """Play copies of a game and return the frame in turn of every row of steps."""
    frames = np.empty((rows, SIZE, SIZE), dtype=np.uint8)
    for row in range(rows):
        frames[row] = player.game.frame_in_turn(row)[0]
        player.step()
    return frames


SPLIT = Path(__file__).parents[2] / "docs" / "results" / "recognition-screens" / "split.json"
VISIT_STEPS = 2_000  # agent steps of a visit, unless it is the first and --first-steps differs


class Recognizer(Protocol):
    """What is measured; one that merges tasks has the attribute `merged` too."""

    def observe(self, frame: NDArray[np.uint8]) -> int: ...


RECOGNIZERS: dict[str, Callable[[], Recognizer]] = {
    "screens": ScreenRecognizer,
    "paper": lambda: ForgetMeNot(wins=1),  # all pixels, and a task as soon as a window is new
}


@dataclass
class Log:
    """The task at every observation of each visit, its seconds, and the tasks that were merged."""

    visits: list[tuple[str, list[int]]] = field(default_factory=list)
    merged: dict[int, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)


@dataclass
class Outcome:
    """What a recognizer made of one set of games.

    Attributes:
        right: by game, the share of observations in a task that belongs to the game.
        tasks: by game, the tasks that belong to it at the end.
        delays: agent steps of each visit before the first that is right, all if none is. The first
            visit follows no switch and is left out.
        mistakes: observations of (game, game that the task belongs to).
        milliseconds: mean time per observation of the last visit, when all tasks exist.
    """

    right: dict[str, float]
    tasks: Counter[str]
    delays: list[int]
    mistakes: Counter[tuple[str, str]]
    milliseconds: float


def watch(recognizer: Recognizer, visits: Iterable[tuple[str, Frames]]) -> Log:
    """Show a recognizer the frames of one visit after another."""
    log = Log()
    for game, frames in visits:
        tasks = []
        start = time.thread_time()
        for frame in frames:
            tasks.append(recognizer.observe(frame))
            log.merged.update(getattr(recognizer, "merged", ()))
        log.seconds.append(time.thread_time() - start)
        log.visits.append((game, tasks))
    return log


def judge(log: Log) -> Outcome:
    """Compare the reported tasks with the games."""
    visits = [(game, [_left(task, log.merged) for task in tasks]) for game, tasks in log.visits]
    games_of: dict[int, Counter[str]] = defaultdict(Counter)
    for game, tasks in visits:
        for task in tasks:
            games_of[task][game] += 1
    game_of = {task: games.most_common(1)[0][0] for task, games in games_of.items()}
    observed = Counter[str]()
    mistakes = Counter[tuple[str, str]]()
    for game, tasks in visits:
        observed[game] += len(tasks)
        mistakes.update((game, game_of[task]) for task in tasks if game_of[task] != game)
    wrong = Counter[str]()
    for (game, _), observations in mistakes.items():
        wrong[game] += observations
    return Outcome(
        {game: 1 - wrong[game] / observed[game] for game in observed},
        Counter(game_of.values()),
        [_delay([game_of[task] == game for task in tasks]) for game, tasks in visits[1:]],
        mistakes,
        1e3 * log.seconds[-1] / len(log.visits[-1][1]),
    )


def _left(task: int, merged: dict[int, int]) -> int:
    while task in merged:
        task = merged[task]
    return task


def _delay(right: Sequence[bool]) -> int:
    return COPIES * (right.index(True) if True in right else len(right))


def describe(outcomes: Sequence[Outcome]) -> str:
    """Return the means over all games of all sets, and the worst of them."""
    right = [(share, game) for outcome in outcomes for game, share in outcome.right.items()]
    tasks = [(outcome.tasks[game], game) for outcome in outcomes for game in outcome.right]
    delays = [delay for outcome in outcomes for delay in outcome.delays]
    mistakes = sum((outcome.mistakes for outcome in outcomes), Counter[tuple[str, str]]())
    (game, taken_for), wrong = max(
        mistakes.items(), key=lambda item: item[1], default=(("none", "none"), 0)
    )
    worst, most = min(right), max(tasks)
    return (
        f"right {100 * np.mean([share for share, _ in right]):.2f} %, "
        f"contexts per game {np.mean([count for count, _ in tasks]):.2f}, "
        f"delay {np.mean(delays):.1f} agent steps, "
        f"{np.mean([outcome.milliseconds for outcome in outcomes]):.2f} ms per observation\n"
        f"  mostly wrong {sum(share < 0.5 for share, _ in right)} of {len(right)} games; "
        f"worst game {worst[1]} ({100 * worst[0]:.2f} %); most contexts {most[1]} ({most[0]}); "
        f"worst pair {game} taken for {taken_for} ({wrong} observations)"
    )


def drawn(games: Sequence[str], size: int, number: int) -> list[str]:
    """Return the set of games with this number, a random one of this size."""
    order: list[str] = np.random.default_rng(number).permutation(sorted(games)).tolist()
    return order[:size]


def rounds(
    frames: RecordedFrames, games: Sequence[str], first_steps: int, seed: int
) -> Iterator[tuple[str, Frames]]:
    """Yield the frames of two visits to each game."""
    for number, game in enumerate(segments(games, 2, seed)):
        visit = number // len(games)
        yield game, frames.visit(game, visit, VISIT_STEPS if visit else first_steps)


def main() -> None:
    """Measure what the arguments ask for, and print it set by set and in all."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.studies.recognition",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    groups = json.loads(SPLIT.read_text())
    parser.add_argument("--group", choices=list(groups), nargs="+", default=["rest"])
    parser.add_argument("--player", choices=PLAYERS, default="random")
    parser.add_argument(
        "--agents",
        type=Path,
        metavar="DIR",
        help=f"for --player {TRAINED}: a run of games with one network per game; games without one "
        "are left out",
    )
    parser.add_argument("--recognizer", choices=list(RECOGNIZERS), default="screens")
    parser.add_argument("--games", type=int, default=10, help="games per set")
    parser.add_argument("--sets", type=int, default=1)
    parser.add_argument("--first-steps", type=int, default=VISIT_STEPS, help="of the first visits")
    parser.add_argument("--frames", type=Path, default=Path("recorded_frames"), help="folder")
    options = parser.parse_args()
    if (options.player == TRAINED) != (options.agents is not None):
        parser.error(f"--agents belongs to --player {TRAINED}")
    games = [game for group in options.group for game in groups[group]]
    if options.agents is not None:
        trained = networks_by_game(str(options.agents))
        games = [game for game in games if game in trained]
    frames = RecordedFrames(options.frames, options.player, options.agents)
    outcomes = []
    for number in range(options.sets):
        visits = rounds(frames, drawn(games, options.games, number), options.first_steps, number)
        outcomes.append(judge(watch(RECOGNIZERS[options.recognizer](), visits)))
        print(f"set {number}: {describe(outcomes[-1:])}", flush=True)
    print(f"all: {describe(outcomes)}", flush=True)


if __name__ == "__main__":
    main()
