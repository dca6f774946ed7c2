"""Contexts from labels and from frames, and how long each was played."""

from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from support.merging import Merging

from ewc.recognition import ForgetMeNot, ScreenRecognizer
from ewc_paper.experiments.games.run import Games
from ewc_paper.games.contexts import ContextTracker, make_recognizer
from ewc_paper.games.running_game import RunningGame

OPTIONS: dict[str, Any] = {"levels": 2, "prior": 1.0, "window": 2, "wins": 1, "independent": 1e9}
BLACK, WHITE = np.zeros((1, 8, 8), np.uint8), np.full((1, 8, 8), 255, np.uint8)


def recognizing() -> ContextTracker:
    return ContextTracker(make_recognizer(OPTIONS))


def test_the_recognizer_takes_its_own_options_alone() -> None:
    recognizer = make_recognizer({**OPTIONS, "lr": 1.0})
    assert isinstance(recognizer, ForgetMeNot)
    recognizer.observe(BLACK)
    assert not recognizer.decided
    recognizer.observe(BLACK)
    assert recognizer.decided  # after a window of 2


def test_games_can_be_recognized_by_their_screens() -> None:
    settings = {"levels": 4, "side": 20, "usual": 0.3}
    recognizer = make_recognizer({**OPTIONS, **settings, "recognizer": "screens"})
    assert isinstance(recognizer, ScreenRecognizer)
    assert settings.items() <= asdict(recognizer.config).items()


def test_true_labels_are_numbered_as_the_games_appear() -> None:
    contexts = ContextTracker(None)
    games = ["Pong", "Krull", "Pong", "Boxing"]
    assert [contexts.identify(game, BLACK) for game in games] == [0, 1, 0, 2]


def test_contexts_are_counted_by_labels_or_by_the_recognizer() -> None:
    told, recognized = ContextTracker(None), recognizing()
    for game, frame in [("Pong", BLACK)] * 4 + [("Krull", WHITE)] * 4 + [("Pong", BLACK)] * 4:
        told.identify(game, frame)
        recognized.identify(game, frame)
    assert told.num_contexts == recognized.num_contexts == 2


def test_a_game_is_tested_in_its_own_context_or_in_the_present_one() -> None:
    contexts = ContextTracker(None)
    for game in ("Pong", "Krull"):
        contexts.identify(game, BLACK)
    assert contexts.recognize_in_test("Krull", present=0)(BLACK) == 1
    assert contexts.recognize_in_test("Boxing", present=5)(BLACK) == 5


def test_a_recognizer_is_undecided_within_a_window() -> None:
    contexts = recognizing()
    frames = [BLACK] * 4 + [WHITE] * 4
    found = [contexts.identify("whatever it is called", frame) for frame in frames]
    assert found == [None, 0, None, 0, None, 1, None, 1]


def test_tests_recognize_frames_without_learning() -> None:
    contexts = recognizing()
    assert contexts.recognize_in_test("Pong", present=7)(BLACK) == 7  # nothing was observed yet
    for frame in [BLACK] * 4 + [WHITE] * 4:
        contexts.identify("Pong", frame)
    contexts.count(0, 4)
    recognize = contexts.recognize_in_test("Pong", present=0)
    assert [recognize(WHITE) for _ in range(3)][-1] == 0  # context 1 was never played in
    contexts.count(1, 4)
    before = contexts.state_dict()["recognizer"]["counts"].clone()
    recognize = contexts.recognize_in_test("Pong", present=7)
    assert recognize(BLACK) == 0
    assert [recognize(WHITE) for _ in range(3)][-1] == 1
    assert contexts.state_dict()["recognizer"]["counts"].equal(before)


def test_steps_are_counted_by_context_and_since_its_consolidation() -> None:
    contexts = ContextTracker(None)
    assert contexts.agent_steps(0) == contexts.steps_since_consolidation(0) == 0
    contexts.count(0, 8)
    contexts.count(1, 8)
    contexts.mark_consolidated(0)
    contexts.count(0, 4)
    assert (contexts.agent_steps(0), contexts.steps_since_consolidation(0)) == (12, 4)
    assert (contexts.agent_steps(1), contexts.steps_since_consolidation(1)) == (8, 8)


@pytest.mark.parametrize("recognizes", [False, True])
def test_the_state_continues_in_another_tracker(recognizes: bool) -> None:
    first, second = (recognizing() if recognizes else ContextTracker(None) for _ in range(2))
    for game, frame in [("Pong", BLACK)] * 3 + [("Krull", WHITE)] * 4:
        first.identify(game, frame)
        first.count(0, 4)
    first.mark_consolidated(0)
    second.load_state_dict(first.state_dict())
    assert (second.agent_steps(0), second.steps_since_consolidation(0)) == (28, 0)
    rest = [("Boxing", WHITE), ("Krull", BLACK), ("Pong", BLACK)]
    assert [second.identify(*one) for one in rest] == [first.identify(*one) for one in rest]


def test_of_two_tasks_that_are_one_the_context_with_more_steps_is_kept() -> None:
    contexts = ContextTracker(Merging([(0, []), (1, []), (0, [(1, 0)]), (2, []), (0, [(2, 0)])]))
    assert contexts.identify("", BLACK) == 0
    contexts.count(0, 10)
    assert contexts.identify("", BLACK) == 1
    contexts.count(1, 30)
    assert contexts.identify("", BLACK) == 1  # task 0, which is context 1 from now on
    assert contexts.merges == [(1, 0)]
    assert (contexts.agent_steps(1), contexts.agent_steps(0)) == (40, 0)
    assert contexts.steps_since_consolidation(1) == 40
    assert contexts.identify("", BLACK) == 2
    assert contexts.merges == []
    contexts.count(2, 5)
    assert contexts.identify("", BLACK) == 1
    assert contexts.merges == [(1, 2)]
    restored = ContextTracker(Merging([(0, [])]))
    restored.load_state_dict(contexts.state_dict())
    assert restored.identify("", BLACK) == 1


@pytest.mark.parametrize("seed", [0, 1])
def test_the_preset_of_minatar_tells_its_games_apart(seed: int) -> None:
    """Breakout's bricks and the aliens of Space Invaders are in the same rows and channel.

    Of seed 1, a frame just before the first change of the game is one that its task did not know.
    """
    options = asdict(Games.preset("laptop"))
    contexts = ContextTracker(make_recognizer(options))
    names, random = list(options["games"]), np.random.default_rng(seed)
    found: dict[str, Counter[int | None]] = {name: Counter() for name in names}
    for segment, name in enumerate([*names[::-1], *names]):
        seed_of_game = 10 * seed + segment
        game = RunningGame(name, 8, seed=seed_of_game, size=84, max_episode_steps=2_500, history=1)
        for row in range(600):
            found[name][contexts.identify(name, game.frame_in_turn(row))] += 1
            game.step(random.integers(0, 6, 8))
    most = {name: counts.most_common(1)[0] for name, counts in found.items()}
    assert len({context for context, _ in most.values()}) == len(names)
    assert min(steps for _, steps in most.values()) > 0.9 * 1_200
