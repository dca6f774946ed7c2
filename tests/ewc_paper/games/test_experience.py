"""Rows wait until their context is decided, and come back from a checkpoint."""

from pathlib import Path

import numpy as np
import pytest

from ewc_paper.games.config import AgentConfig
from ewc_paper.games.experience import REPLAY_PATTERN, Experience, replay_bytes
from ewc_paper.games.replay import ReplayRow

COPIES, SHAPE = 2, (1, 36, 36)
CONFIG = AgentConfig(environments=COPIES, history=2, replay_capacity=40, discount=0.5)


def make(directory: Path | None = None) -> Experience:
    experience = Experience(CONFIG, SHAPE)
    experience.directory = directory
    return experience


def row(number: int) -> ReplayRow:
    flags = np.zeros(COPIES, bool)
    return ReplayRow(
        np.full((COPIES, *SHAPE), number, np.uint8),
        np.full(COPIES, number),
        np.zeros(COPIES, np.float32),
        flags,
        flags,
        flags,
    )


def actions_in(experience: Experience, context: int) -> set[int]:
    """The actions of all transitions of a context."""
    sampled = experience.replays[context].sample(200, np.random.default_rng(0))
    return set(sampled.actions.tolist())


def test_rows_wait_for_their_context() -> None:
    experience = make()
    for number in range(3):
        experience.hold(row(number))
    assert experience.replays == {}
    experience.store(5)
    assert experience.pending == []
    assert experience.replays.keys() == {5}
    assert experience.replays[5].written == 3


def test_rows_on_both_sides_of_a_gap_are_not_connected() -> None:
    experience = make()
    for number in range(6):
        if number == 3:
            experience.mark_gap()
        experience.hold(row(number))
        experience.store(0)
    assert actions_in(experience, 0) == {0, 1, 3, 4}  # what follows 2 and 5 is not known


def test_rows_without_a_context_are_dropped_and_leave_a_gap() -> None:
    experience = make()
    for number in range(3):
        experience.hold(row(number))
    experience.store(0)
    experience.hold(row(3))
    experience.drop_pending()
    assert experience.pending == []
    for number in range(4, 6):
        experience.hold(row(number))
    experience.store(0)
    assert actions_in(experience, 0) == {0, 1, 4}


@pytest.mark.parametrize("in_files", [False, True])
def test_a_context_has_a_replay_memory_of_its_own(in_files: bool, tmp_path: Path) -> None:
    experience = make(tmp_path if in_files else None)
    for context in (0, 3):
        for number in range(2):
            experience.hold(row(10 * context + number))
        experience.store(context)
        experience.mark_gap()
    assert (actions_in(experience, 0), actions_in(experience, 3)) == ({0}, {30})
    files = {file.name for file in tmp_path.glob(REPLAY_PATTERN)}
    assert files == ({"replay-0.rows", "replay-3.rows"} if in_files else set())


def test_it_asks_for_a_checkpoint_before_rows_are_overwritten(tmp_path: Path) -> None:
    experience = make(tmp_path)
    written = 0
    while not experience.needs_saving:
        experience.hold(row(written % 256))
        experience.store(0)
        written += 1
    assert written == experience.replays[0].slack // 2
    experience.state_dict()
    assert not experience.needs_saving


def test_the_state_has_the_stored_and_the_pending_rows(tmp_path: Path) -> None:
    first, second = make(tmp_path), make(tmp_path)
    for number in range(4):
        first.hold(row(number))
    first.store(1)
    first.hold(row(4))
    second.load_state_dict(first.state_dict())
    for experience in (first, second):
        experience.hold(row(5))
        experience.store(1)
        assert actions_in(experience, 1) == {0, 1, 2, 3, 4}


def test_the_disk_space_counts_the_rows_that_will_be_written(tmp_path: Path) -> None:
    config = AgentConfig(size=36, environments=COPIES, replay_capacity=10_000, segment_steps=9)
    experience = Experience(config, SHAPE)
    experience.directory = tmp_path
    experience.hold(row(0))
    experience.store(0)
    (file,) = tmp_path.glob(REPLAY_PATTERN)
    bytes_per_row = file.stat().st_size / (5_000 + 2 * 2048)
    rows = 2 * 5 + 1 * 5  # two segments of one game and one of another, 5 rows each
    assert replay_bytes(config, ["Pong", "Boxing", "Pong"]) == rows * bytes_per_row
