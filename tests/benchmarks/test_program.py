"""The program: costs grow with weights and steps, and a cluster is no faster than its longest."""

import pytest

from benchmarks.program import (
    CPUS_PER_NODE,
    Costs,
    Network,
    game_networks,
    makespan_hours,
    program,
    step_seconds,
    weights,
)
from ewc_paper.experiments.many_tasks.run import ManyTasks


class Flat(Costs):
    """A step costs a second for every weight of 2x400."""

    def step(self, width: int, layers: int, batch: int) -> float:
        return weights(width, layers) / weights(400, 2)


def test_hours_are_steps_times_their_cost() -> None:
    (part,) = ManyTasks.preset("paper", methods=("ewc",), width=400, epochs=2, tasks=3).parts()
    assert Flat().hours(part) == pytest.approx(3 * 2 * 55_000 / 10 / 3600)


def test_a_larger_network_costs_more() -> None:
    assert step_seconds(16, 1, 4, steps=3) > 0
    costs = Costs()
    costs.measured[400, 2, 10] = 1.0
    assert costs.step(400, 2, 10) == 1.0
    assert costs.step(500, 2, 10) == pytest.approx(weights(500, 2) / weights(400, 2))


def test_the_program_has_the_paper_s_networks() -> None:
    networks = program(Flat())
    count = {name: sum(n.experiment == name for n in networks) for name in ("many-tasks", "games")}
    assert count == {"many-tasks": 50 * 3 + 2 * 10 * 3, "games": 196}
    assert len(game_networks()) == 197


def test_a_cluster_ends_with_its_longest_network() -> None:
    networks = [Network("a", hours, 1.0) for hours in (5.0, 3.0, 2.0, 2.0)]
    assert makespan_hours(networks, 1) == 12.0
    assert makespan_hours(networks, 2) == 7.0  # 5 + 2 beside 3 + 2
    assert makespan_hours(networks, 1000 * CPUS_PER_NODE) == 5.0
