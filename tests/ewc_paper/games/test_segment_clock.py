"""The clock against a count of single steps."""

from hypothesis import given
from hypothesis import strategies as st

from ewc_paper.games.segment_clock import SegmentClock

SCHEDULE = ["Pong", "Boxing", "Pong"]


def make(segment_steps: int = 10, copies: int = 4) -> SegmentClock:
    return SegmentClock(SCHEDULE, segment_steps, copies)


def play_segment(clock: SegmentClock) -> None:
    while clock.rows_left:
        clock.tick()
    clock.next_segment()


def test_a_segment_has_whole_rows() -> None:
    clock = make(segment_steps=10, copies=4)
    assert clock.rows_left == clock.rows_per_segment == 3
    clock.tick()
    assert (clock.rows_left, clock.agent_steps) == (2, 4)


def test_segments_follow_the_schedule_until_it_is_over() -> None:
    clock, played = make(), []
    assert clock.previous_game is None
    while not clock.over:
        played.append(clock.game)
        play_segment(clock)
        assert clock.previous_game == played[-1]
    assert played == SCHEDULE
    assert clock.agent_steps == 3 * 3 * 4


def test_progress_goes_from_zero_to_one() -> None:
    clock, seen = make(), []
    while not clock.over:
        seen.append(clock.progress)
        clock.tick()
        if not clock.rows_left:
            assert clock.progress == (clock.segment + 1) / 3
            clock.next_segment()
    assert seen == sorted(seen)
    assert (seen[0], clock.progress) == (0, 1)


def test_steps_are_counted_by_game() -> None:
    clock = make()
    play_segment(clock)
    clock.tick()
    assert (clock.agent_steps_in("Pong"), clock.agent_steps_in("Boxing")) == (12, 4)
    clock.tick()
    clock.tick()
    assert clock.agent_steps_in("Boxing") == 12  # the segment is played, but not completed
    clock.next_segment()
    assert (clock.agent_steps_in("Pong"), clock.agent_steps_in("Boxing")) == (12, 12)
    play_segment(clock)
    assert (clock.agent_steps_in("Pong"), clock.agent_steps_in("Boxing")) == (24, 12)
    assert clock.agent_steps_in("Krull") == 0


@given(st.integers(1, 20), st.integers(1, 50), st.integers(1, 40))
def test_what_is_due_is_what_single_steps_would_trigger(copies: int, every: int, rows: int) -> None:
    clock = SegmentClock(["Pong"], copies * rows, copies)
    for row in range(rows):
        clock.tick()
        steps = range(row * copies + 1, (row + 1) * copies + 1)
        assert clock.times_due(every) == sum(step % every == 0 for step in steps)


def test_the_state_continues_in_another_clock() -> None:
    clock, again = make(), make()
    play_segment(clock)
    clock.tick()
    again.load_state_dict(clock.state_dict())
    assert (again.segment, again.row, again.game) == (1, 1, "Boxing")
    assert again.agent_steps == clock.agent_steps
