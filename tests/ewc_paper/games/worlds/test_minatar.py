"""A MinAtar task is its game under a symmetry, and a name is refused if it names none."""

from collections.abc import Callable

import numpy as np
import pytest
from minatar import Environment
from numpy.typing import NDArray

from ewc_paper.games.worlds.minatar import GAMES, SYMMETRIES, MinAtar, MinAtarTask, parse

# Where the pixel (row i, column j) of the transformed square comes from.
SOURCES: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "": lambda i, j: (i, j),
    "rotate90": lambda i, j: (j, 9 - i),
    "rotate180": lambda i, j: (9 - i, 9 - j),
    "rotate270": lambda i, j: (9 - j, i),
    "mirror": lambda i, j: (i, 9 - j),
    "flip": lambda i, j: (9 - i, j),
    "transpose": lambda i, j: (j, i),
    "antitranspose": lambda i, j: (9 - j, 9 - i),
}


def transformed(frame: NDArray[np.uint8], task: MinAtarTask) -> NDArray[np.uint8]:
    out = np.empty_like(frame)
    for channel, source in enumerate(task.channel_order):
        for i in range(10):
            for j in range(10):
                out[channel, i, j] = frame[source, *SOURCES[task.symmetry](i, j)]
    return out


@pytest.mark.parametrize("game", GAMES)
def test_the_plain_task_is_the_game_as_published(game: str) -> None:
    task, published = MinAtar(f"minatar/{game}", 5000), Environment(game)
    actions, seen = np.random.default_rng(0), 0
    for seed in range(4):
        published.seed(seed)
        published.reset()
        published.last_action = 0
        frame, terminal = task.reset(seed), False
        while not terminal and seen < 300:
            state = published.state().transpose(2, 0, 1)
            assert np.array_equal(frame[: len(state)], state * 255)
            assert not frame[len(state) :].any()
            action = int(actions.integers(6))
            frame, reward, terminal, _ = task.step(action)
            assert (reward, terminal) == published.act(action)
            seen += 1
    assert seen > 20


@pytest.mark.parametrize("symmetry", SYMMETRIES)
@pytest.mark.parametrize("game", ["seaquest", "breakout"])
def test_a_task_is_its_game_under_the_symmetry(game: str, symmetry: str) -> None:
    task = MinAtarTask(game, symmetry, actions=3, channels=5)
    plain, turned = MinAtar(f"minatar/{game}", 5000), MinAtar(str(task), 5000)
    frame, terminal = plain.reset(1), False
    assert np.array_equal(turned.reset(1), transformed(frame, task))
    actions = np.random.default_rng(2)
    for _ in range(40):
        if terminal:
            break
        action = int(actions.integers(6))
        frame, reward, terminal, truncated = plain.step(task.action_order[action])
        step = turned.step(action)
        assert np.array_equal(step.frame, transformed(frame, task))
        assert step[1:] == (reward, terminal, truncated)


def test_the_symmetries_are_the_eight_of_the_square() -> None:
    image = np.arange(100).reshape(10, 10)
    images = {SYMMETRIES[name](image).tobytes() for name in SYMMETRIES}
    assert len(images) == len(SYMMETRIES) == 8


def test_orders_are_permutations_that_differ_by_number() -> None:
    tasks = [MinAtarTask("asterix", actions=number, channels=number) for number in range(20)]
    assert tasks[0].action_order == list(range(6))
    assert tasks[0].channel_order.tolist() == list(range(10))
    for task in tasks:
        assert sorted(task.action_order) == list(range(6))
        assert sorted(task.channel_order) == list(range(10))
    assert len({tuple(task.channel_order) for task in tasks}) == 20
    assert len({tuple(task.action_order) for task in tasks}) > 15


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("minatar/freeway", MinAtarTask("freeway")),
        ("minatar/breakout:rotate90", MinAtarTask("breakout", "rotate90")),
        ("minatar/asterix:actions12", MinAtarTask("asterix", "", 12)),
        ("minatar/asterix:channels3", MinAtarTask("asterix", "", 0, 3)),
        (
            "minatar/space_invaders:flip,actions1,channels2",
            MinAtarTask("space_invaders", "flip", 1, 2),
        ),
    ],
)
def test_a_name_is_its_task(name: str, task: MinAtarTask) -> None:
    assert parse(name) == task
    assert str(task) == name


@pytest.mark.parametrize(
    "name",
    [
        "minatar/pong",
        "minatar/",
        "breakout",
        "minatar/breakout:",
        "minatar/breakout:rotate45",
        "minatar/breakout:rotate90,mirror",
        "minatar/breakout:actions",
        "minatar/breakout:actions0",
        "minatar/breakout:actions01",
        "minatar/breakout:actions1,rotate90",
        "minatar/breakout:mirror,",
        "minatar/breakout:mirror,actions1,actions2",
        "minatar/breakout:mirror,colors1",
    ],
)
def test_a_task_has_no_other_name(name: str) -> None:
    with pytest.raises(ValueError, match=r"no task is called .*minatar/<game>\[:<symmetry>"):
        parse(name)


@pytest.mark.parametrize("game", GAMES)
def test_an_episode_does_not_depend_on_those_before(game: str) -> None:
    task = MinAtar(f"minatar/{game}", 100)
    actions = np.random.default_rng(0).integers(6, size=100).tolist()

    def play(seed: int) -> list[object]:
        played: list[object] = [task.reset(seed).tobytes()]
        for action in actions:
            frame, *rest = task.step(action)
            played.append((frame.tobytes(), rest))
            if rest[1] or rest[2]:
                break
        return played

    first = [play(seed) for seed in range(5)]
    assert [play(seed) for seed in reversed(range(5))] == first[::-1]
    assert len({repr(played) for played in first}) > 1
