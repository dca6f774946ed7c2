"""The replay memory against a list of whole transitions, and its file after a crash."""

from pathlib import Path

import numpy as np
import pytest

from ewc_paper.games.replay import Replay, ReplayError, ReplayRow

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
