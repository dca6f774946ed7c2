"""Games told apart in a run: the rows add up, and it goes on where it was stopped."""

from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from ewc_paper.experiments.games.run import Games
from ewc_paper.experiments.recognition.learner import RecognitionRun
from ewc_paper.experiments.recognition.run import Recognition
from ewc_paper.runs.checkpoint import load_checkpoint, save_checkpoint
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.loop import carry_on

TINY: dict[str, Any] = {
    "games": ("minatar/breakout", "minatar/space_invaders"),
    "segment_steps": 600,
    "max_episode_steps": 100,
    "levels": 2,  # a cell is empty or not
    "prior": 0.1,  # so few cells are lit that with more mass both games look alike
}


def make(**changes: Any) -> RecognitionRun:
    (part,) = Recognition.preset("quick", **{**TINY, **changes}).parts()
    made = part.make(part.config)
    assert isinstance(made, RecognitionRun)
    return made


def rows_of(run: RecognitionRun) -> list[dict[str, Any]]:
    return [timeless(row) for row in run.run() if row is not None]


def steps_by_context(rows: list[dict[str, Any]], labels: str) -> dict[int, Counter[str]]:
    """The steps of each game that were taken for a context."""
    taken: dict[int, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for context, steps in row[labels]:
            taken[context][row["game"]] += steps
    return taken


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "milliseconds"}


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `games` with one network per game, hardly trained."""
    path = tmp_path_factory.mktemp("games")
    tiny = {
        "segment_steps": 64,
        "test_episodes": 1,
        "table_episodes": 1,
        "visits": 1,
        "max_episode_steps": 20,
    }
    config = Games.preset("quick", games=TINY["games"], arms=("single",), **tiny)
    for part in config.parts():
        directory = RunDirectory(path).part(part.name)
        directory.start(part.config)
        carry_on(part.make(part.config), directory)
    return path


def test_two_games_are_told_apart() -> None:
    rows = rows_of(make())
    assert [row["segment"] for row in rows] == [0, 1, 2, 3]
    for row in rows:
        for labels in ("observed", "decided"):
            assert sum(steps for _, steps in row[labels]) == row["steps"] == 600
    for labels in ("observed", "decided"):
        taken = steps_by_context(rows, labels)
        right = sum(max(games.values()) for games in taken.values())
        assert right > 0.9 * sum(row["steps"] for row in rows)
        assert len(taken) == 2


def test_what_is_decided_comes_at_the_ends_of_windows() -> None:
    rows = rows_of(make())
    starts = {0}
    steps = 0
    for row in rows:
        for _, length in row["decided"]:
            starts.add(steps)
            steps += length
    window = 4 * 4  # observations per window, copies played at once
    # A segment begins a new run of steps whether the context changes or not.
    assert all(start % 600 == 0 or start % window == window - 4 for start in starts)


@pytest.mark.parametrize("trained", [False, True])
def test_it_goes_on_where_it_was_stopped(trained: bool, agents: Path, tmp_path: Path) -> None:
    options = {"agents": str(agents)} if trained else {}
    whole, first, second = make(**options), make(**options), make(**options)
    expected = rows_of(whole)
    begun = [timeless(row) for row in islice(first.run(), 7) if row is not None]
    save_checkpoint(tmp_path, first.state_dict())
    state = load_checkpoint(tmp_path)
    assert state is not None
    second.load_state_dict(state)
    assert 0 < second.progress == first.progress < 1
    assert begun + rows_of(second) == expected


def test_the_network_trained_on_the_game_plays_it(agents: Path) -> None:
    run = make(agents=str(agents), epsilon=0.0)
    name = run.clock.schedule[0].replace("/", "-")
    state = load_checkpoint(agents / "parts" / f"single-{name}-seed0")
    assert state is not None
    agent = run.player.agent
    assert agent is not None
    for parameter, weights in agent.network.state_dict().items():
        assert weights.equal(state["state"]["agent"]["network"][parameter]), parameter
    values = agent.network(torch.from_numpy(run.player.game.states))
    before = run.player.game.state_dict()["environments"]["actions"]
    run.player.step()
    after = run.player.game.state_dict()["environments"]["actions"]
    assert before == [[]] * 4
    assert after == [[action] for action in values.argmax(1).tolist()]
