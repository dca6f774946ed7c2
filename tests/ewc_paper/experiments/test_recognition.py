"""Recognition: games are told apart, also after a stop; how many steps are correct, how soon."""

from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import as_text, make_recognition, run_through

from ewc_paper.errors import RunError
from ewc_paper.experiments.games.run import Games
from ewc_paper.experiments.recognition import figure
from ewc_paper.experiments.recognition.run import Recognition, RecognitionRun
from ewc_paper.runs.checkpoint import load_checkpoint, save_checkpoint
from ewc_paper.runs.directory import RunDirectory


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"games": ("Pong",)}, "--games must name at least 2 games, got 1"),
        ({"games": ("Pong", "Pong")}, "--games must all differ, got Pong and Pong"),
        ({"games": ("Pong", "Nosuch")}, "--games: no game is called Nosuch"),
        ({"games": ("Pong", "minatar/chess")}, "--games must be all of Atari or all of MinAtar"),
        ({"games": ("minatar/breakout", "minatar/chess")}, "--games: no task is called"),
    ],
)
def test_games_that_cannot_be_told_apart_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RunError, match=said):
        Recognition.preset("quick", **changes)


def single_game_networks(path: Path, sizes: dict[str, int]) -> str:
    """A run of `games` with one network per game, not trained yet."""
    for number, (game, size) in enumerate(sizes.items()):
        RunDirectory(path).part(f"single-{number}").start(
            {"games": [game], "settings": {"size": size}}
        )
    return str(path)


def test_a_game_without_a_network_is_refused(tmp_path: Path) -> None:
    agents = single_game_networks(tmp_path, {"minatar/breakout": 84, "minatar/seaquest": 84})
    games = ("minatar/breakout", "minatar/freeway")
    with pytest.raises(RunError, match="has no single-game network of minatar/freeway"):
        Recognition.preset("quick", games=games, agents=agents)


def test_networks_that_see_frames_of_different_sizes_are_refused(tmp_path: Path) -> None:
    agents = single_game_networks(tmp_path, {"Pong": 84, "Boxing": 42})
    with pytest.raises(RunError, match=r"frames of different sizes, \[42, 84\]"):
        Recognition.preset("quick", games=("Pong", "Boxing"), agents=agents)


TINY: dict[str, Any] = {
    "games": ("minatar/breakout", "minatar/space_invaders"),
    "segment_steps": 600,
    "max_episode_steps": 100,
    "recognizer": "forget-me-not",
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
        run_through(part.make(part.config), directory)
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


def test_the_presets_tell_atari_games_apart() -> None:
    options = Recognition.preset("quick", games=("Pong", "Boxing")).parts()[0].config
    taken = steps_by_context(rows_of(RecognitionRun(options)), "observed")
    right = sum(max(games.values()) for games in taken.values())
    assert len(taken) == 2
    assert right > 0.985 * sum(games.total() for games in taken.values())


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


def test_the_table_has_means_over_seeds(tmp_path: Path) -> None:
    shown = as_text(figure.table(make_recognition(tmp_path)))
    assert all(value in shown for value in ("92.00", "3.00", "1.50", "12.00", "0.12"))


def test_the_delay_lasts_from_a_switch_to_the_first_correct_step(tmp_path: Path) -> None:
    rows = make_recognition(tmp_path).parts()[0].rows()
    found = figure.summarize(rows, "observed")
    assert found.correct == pytest.approx(0.92)  # 20 + 4 of 300 steps are wrong
    assert (found.contexts, found.delay) == (3, (20 + 4) / 2)
    assert figure.summarize(rows[:1], "observed").delay == 0.0  # no switch


def test_contexts_are_whole_numbers(tmp_path: Path, drawn: Any) -> None:
    figure.draw(make_recognition(tmp_path))
    (ax,) = drawn.panels["recognition"]
    assert all(float(tick).is_integer() for tick in ax.get_yticks())


def test_there_is_one_band_per_segment_and_one_color_per_game(tmp_path: Path, drawn: Any) -> None:
    figure.draw(make_recognition(tmp_path))
    assert drawn.legends["recognition"] == ["Pong", "Boxing"]
    (ax,) = drawn.panels["recognition"]
    bands = [patch.get_facecolor() for patch in ax.patches[:3]]
    assert bands[0] == bands[2] != bands[1]
