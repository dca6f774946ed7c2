"""ε falls linearly between two numbers of steps."""

import pytest

from ewc_paper.games.exploration import exploration_rate


@pytest.mark.parametrize(
    ("agent_steps", "rate"), [(0, 1.0), (100, 1.0), (150, 0.6), (200, 0.2), (10_000, 0.2)]
)
def test_the_rate_falls_from_one_to_its_final_value(agent_steps: int, rate: float) -> None:
    found = exploration_rate(agent_steps, start=100, end=200, final=0.2)
    assert found == pytest.approx(rate)


def test_without_a_span_it_falls_at_once() -> None:
    assert exploration_rate(100, start=100, end=100, final=0.2) == 1.0
    assert exploration_rate(101, start=100, end=100, final=0.2) == pytest.approx(0.2)
