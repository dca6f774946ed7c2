"""The replay memory against a list of whole transitions, and its file after a crash."""

from pathlib import Path

import numpy as np
import pytest

from ewc_paper.games.config import AgentConfig
from ewc_paper.games.replay import (
    REPLAY_PATTERN,
    Experience,
    Replay,
    ReplayError,
    ReplayRow,
    replay_bytes,
)

COPIES, HISTORY, DISCOUNT = 3, 4, 0.9
SHAPE = (2, 5, 4)


def make_rows(count: int, seed: int = 0) -> list[ReplayRow]:
    """Random play: frames that are all different, some games end and some are truncated."""
    random = np.random.default_rng(seed)
    rows, is_first = [], np.ones(COPIES, bool)
    for _ in range(count):
        terminal = random.random(COPIES) < 0.1
        truncated = (random.random(COPIES) < 0.1) & ~terminal
        rows.append(
            ReplayRow(
                random.integers(0, 256, (COPIES, *SHAPE), dtype=np.uint8),
                random.integers(0, 18, COPIES),
                random.standard_normal(COPIES).astype(np.float32),
                terminal,
                truncated,
                is_first,
            )
        )
        is_first = terminal | truncated
    return rows


def naive_state(rows: list[ReplayRow], number: int, copy: int, oldest: int) -> np.ndarray:
    """The stack a frame at a time, from the newest back to the start of the episode."""
    frames: list[np.ndarray] = []
    for back in range(number, number - HISTORY, -1):
        frames.append(rows[back].frames[copy])
        if rows[back].is_first[copy] or back == oldest:
            break
    blank = [np.zeros(SHAPE, np.uint8)] * (HISTORY - len(frames))
    return np.concatenate(blank + frames[::-1])


def naive_transitions(rows: list[ReplayRow], oldest: int, n_step: int) -> dict[bytes, tuple]:
    """Every transition whose outcome is known, by the bytes of its state."""
    known = {}
    for number in range(oldest, len(rows) - n_step):
        for copy in range(COPIES):
            total, factor, at = 0.0, 1.0, number
            while True:
                total += factor * rows[at].rewards[copy]
                factor *= DISCOUNT
                ended, broken = rows[at].terminal[copy], rows[at].truncated[copy]
                at += 1
                if ended or broken or at == number + n_step:
                    break
            if broken:
                continue
            state = naive_state(rows, number, copy, oldest)
            after = None if ended else naive_state(rows, at, copy, oldest)
            discount = 0.0 if ended else factor
            known[state.tobytes()] = (rows[number].actions[copy], total, after, discount)
    return known


def filled(rows: list[ReplayRow], capacity: int, n_step: int, file: Path | None = None) -> Replay:
    replay = Replay(
        capacity,
        COPIES,
        SHAPE,
        history=HISTORY,
        n_step=n_step,
        discount=DISCOUNT,
        file=file,
        slack=8,
    )
    for row in rows:
        replay.append(row)
        if replay.needs_saving:
            replay.state_dict()
    return replay


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("count", [20, 100])  # before and after the ring has gone round
def test_samples_equal_naively_stacked_transitions(tmp_path: Path, n_step: int, count: int) -> None:
    rows = make_rows(count)
    replay = filled(rows, capacity=30 * COPIES, n_step=n_step, file=tmp_path / "rows")
    known = naive_transitions(rows, max(0, count - 30), n_step)
    batch = replay.sample(2000, np.random.default_rng(1))
    seen = set()
    for state, action, reward, after, discount in zip(*batch, strict=True):
        expected = known[state.tobytes()]
        seen.add(state.tobytes())
        assert action == expected[0]
        assert reward == pytest.approx(expected[1], abs=1e-6)
        assert discount == pytest.approx(expected[3])
        if expected[2] is not None:
            np.testing.assert_array_equal(after, expected[2])
    assert seen == known.keys()  # and every one of them is drawn


def test_draws_are_even() -> None:
    rows = make_rows(20)
    replay = filled(rows, 1000, 1)
    states = replay.sample(20_000, np.random.default_rng(0)).states
    _, counts = np.unique(states.reshape(len(states), -1), axis=0, return_counts=True)
    expected = len(states) / len(counts)
    assert np.abs(counts - expected).max() < 6 * expected**0.5


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("starts", [False, True], ids=["same episode", "new episode"])
def test_nothing_is_joined_over_a_gap(starts: bool, n_step: int) -> None:
    rows = make_rows(12)
    replay = Replay(1000, COPIES, SHAPE, history=HISTORY, n_step=n_step)
    for number, row in enumerate(rows):
        plain = row._replace(terminal=np.zeros(COPIES, bool), truncated=np.zeros(COPIES, bool))
        is_first = np.full(COPIES, number == 0 or (starts and number == 5))
        replay.append(plain._replace(is_first=is_first), after_gap=number == 5)
    batch = replay.sample(500, np.random.default_rng(0))
    newest = batch.states[:, -SHAPE[0] :]
    last_before = [frame for row in rows[5 - n_step : 5] for frame in row.frames]
    assert not any((newest == frame).all((1, 2, 3)).any() for frame in last_before)
    first_after = [(newest == frame).all((1, 2, 3)) for frame in rows[5].frames]
    for at in first_after:
        assert at.any()
        assert not batch.states[at, : -SHAPE[0]].any()


def test_a_million_transitions_take_at_most_7_5_gb(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    Replay(1_000_000, 4, (1, 84, 84), history=4, file=file)
    assert file.stat().st_size <= 7.5e9  # a sparse file until it is written to


def test_goes_back_to_a_checkpoint_after_more_was_written(tmp_path: Path) -> None:
    rows = make_rows(60)
    replay = filled(rows[:48], 30 * COPIES, 1, tmp_path / "rows")
    saved = replay.state_dict()
    expected = replay.sample(200, np.random.default_rng(2))
    for row in rows[48:56]:  # as many as may be written without saving again
        replay.append(row)
    again = Replay(
        30 * COPIES,
        COPIES,
        SHAPE,
        history=HISTORY,
        discount=DISCOUNT,
        file=tmp_path / "rows",
        slack=8,
    )
    again.load_state_dict(saved)
    for mine, theirs in zip(again.sample(200, np.random.default_rng(2)), expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_refuses_to_write_over_what_a_checkpoint_needs(tmp_path: Path) -> None:
    replay = filled([], 30 * COPIES, 1, tmp_path / "rows")
    rows = make_rows(9)
    for row in rows[:8]:
        replay.append(row)
    with pytest.raises(ReplayError, match="not saved"):
        replay.append(rows[8])


@pytest.mark.parametrize("damage", ["cut short", "altered"])
def test_damage_is_found(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "rows"
    replay = filled(make_rows(20), 30 * COPIES, 1, file)
    saved = replay.state_dict()
    content = bytearray(file.read_bytes())
    if damage == "altered":
        content[len(content) // 5] ^= 1
    else:
        del content[-1:]
    file.write_bytes(content)
    with pytest.raises(ReplayError, match=r"instead of|damaged"):
        Replay(30 * COPIES, COPIES, SHAPE, history=HISTORY, file=file, slack=8).load_state_dict(
            saved
        )


def test_whole_rows_of_another_memory_are_found(tmp_path: Path) -> None:
    saved = filled(make_rows(20), 30 * COPIES, 1, tmp_path / "mine").state_dict()
    filled(make_rows(20, seed=1), 30 * COPIES, 1, tmp_path / "theirs").state_dict()
    (tmp_path / "theirs").replace(tmp_path / "mine")
    swapped = Replay(30 * COPIES, COPIES, SHAPE, history=HISTORY, file=tmp_path / "mine", slack=8)
    with pytest.raises(ReplayError, match="holds other rows than were saved"):
        swapped.load_state_dict(saved)


def test_an_empty_memory_says_so() -> None:
    with pytest.raises(ValueError, match="expected 2 rows in a row, got 0"):
        Replay(10, COPIES, SHAPE, history=1).sample(1, np.random.default_rng(0))


@pytest.mark.parametrize("rows_per_visit", [2, 3])
def test_visits_of_n_steps_have_no_known_outcome(rows_per_visit: int) -> None:
    """With n steps and one more there is one; a memory reloaded from its file agrees."""
    replay = Replay(1000, COPIES, SHAPE, history=HISTORY, n_step=2)
    for number, row in enumerate(make_rows(12)):
        never = np.zeros(COPIES, bool)
        row = row._replace(terminal=never, truncated=never, is_first=never)
        replay.append(row, after_gap=number % rows_per_visit == 0)
    assert (len(replay) > 0) == (rows_per_visit > 2)


def test_rare_outcomes_are_found(tmp_path: Path) -> None:
    """One visit in many is long enough to learn from."""
    file = tmp_path / "rows"

    def memory() -> Replay:
        return Replay(1000, COPIES, SHAPE, history=1, n_step=2, file=file, slack=1000)

    replay, never = memory(), np.zeros(COPIES, bool)
    rows = make_rows(400)
    for number, row in enumerate(rows):
        row = row._replace(terminal=never, truncated=never, is_first=never)
        replay.append(row, after_gap=number % 2 == 0 and number != 200)
    restored = memory()
    restored.load_state_dict(replay.state_dict())
    for one in (replay, restored):
        assert len(one) > 0
        states = one.sample(50, np.random.default_rng(0)).states
        known = [frame for number in (198, 199) for frame in rows[number].frames]
        assert all(any((state == frame).all() for frame in known) for state in states)


HELD_COPIES, HELD_SHAPE = 2, (1, 36, 36)
CONFIG = AgentConfig(environments=HELD_COPIES, history=2, replay_capacity=40, discount=0.5)


def make(directory: Path | None = None) -> Experience:
    experience = Experience(CONFIG, HELD_SHAPE)
    experience.directory = directory
    return experience


def row(number: int) -> ReplayRow:
    flags = np.zeros(HELD_COPIES, bool)
    return ReplayRow(
        np.full((HELD_COPIES, *HELD_SHAPE), number, np.uint8),
        np.full(HELD_COPIES, number),
        np.zeros(HELD_COPIES, np.float32),
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
    config = AgentConfig(size=36, environments=HELD_COPIES, replay_capacity=10_000, segment_steps=9)
    experience = Experience(config, HELD_SHAPE)
    experience.directory = tmp_path
    experience.hold(row(0))
    experience.store(0)
    (file,) = tmp_path.glob(REPLAY_PATTERN)
    bytes_per_row = file.stat().st_size / (5_000 + 2 * 2048)
    rows = 2 * 5 + 1 * 5  # two segments of one game and one of another, 5 rows each
    assert replay_bytes(config, ["Pong", "Boxing", "Pong"]) == rows * bytes_per_row
