"""Noise on a trained agent: drawn again at every pass, gone afterwards, measured where it says."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ewc.perturbation import perturbed
from ewc_paper.errors import RunError
from ewc_paper.experiments.perturbation.learner import NoiseLearner, at_every_pass
from ewc_paper.experiments.perturbation.run import Perturbations
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.loop import carry_on

TINY = {
    "environments": 4,
    "max_episode_steps": 50,
    "min_history": 40,
    "fisher_batches": 3,
    "segment_steps": 400,
    "test_episodes": 2,
    "table_episodes": 2,
    "noise_episodes": 3,
    "scales": (0.01, 3.0),
}


def learner(**changes: Any) -> NoiseLearner:
    (part,) = Perturbations.preset("quick", **{**TINY, **changes}).parts()
    made = part.make(part.config)
    assert isinstance(made, NoiseLearner)
    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    directory = RunDirectory(tmp_path_factory.mktemp("run"))
    carry_on(learner(), directory)
    return directory


def noise_rows(run: RunDirectory) -> list[dict[str, Any]]:
    return [row for row in run.rows() if row["kind"] == "noise"]


def test_every_pass_has_a_draw_of_its_own_and_leaves_the_weights_alone() -> None:
    network = nn.Linear(3, 2)
    fisher = {name: torch.ones_like(weight) for name, weight in network.named_parameters()}
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    seen: list[Tensor] = []
    with at_every_pass(network, perturbed(network, fisher, 0.1)):
        seen = [network(torch.ones(1, 3)) for _ in range(2)]
        assert all(torch.equal(weight, before[name]) for name, weight in network.named_parameters())
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], network(torch.ones(1, 3)))
    assert torch.equal(network(torch.ones(1, 3)), network(torch.ones(1, 3)))


def test_a_pass_that_fails_leaves_the_weights_alone_too() -> None:
    network = nn.Linear(3, 2)
    fisher = {name: torch.ones_like(weight) for name, weight in network.named_parameters()}
    before = network.weight.clone()
    noise = perturbed(network, fisher, 0.1)
    with at_every_pass(network, noise), pytest.raises(RuntimeError):
        network(torch.ones(1, 4))
    assert torch.equal(network.weight, before)


def test_each_shape_is_measured_at_each_size(run: RunDirectory) -> None:
    points = [(row["shape"], row["scale"]) for row in noise_rows(run)]
    shapes = ("uniform", "inverse-fisher", "nullspace")
    assert points == [("uniform", 0.0)] + [(s, scale) for scale in (0.01, 3.0) for s in shapes]
    assert all(len(row["scores"]) == 3 for row in noise_rows(run))


def test_the_random_player_plays_the_same_game(run: RunDirectory) -> None:
    (row,) = [row for row in run.rows() if row["kind"] == "random"]
    assert len(row["scores"]) == 100
    assert 0.1 < sum(row["scores"]) / 100 < 1.0  # MinAtar's Breakout; 0.54 in 500 episodes


def test_a_resumed_run_measures_the_same(run: RunDirectory, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(progress: float, row: dict[str, Any] | None) -> None:
        if row and row["kind"] == "noise" and row["scale"] == 3.0:
            raise Stop

    directory = RunDirectory(tmp_path)
    with pytest.raises(Stop):
        carry_on(learner(), directory, checkpoint_seconds=0, report=stop)
    assert 0 < len(noise_rows(directory)) < len(noise_rows(run))
    carry_on(learner(), directory)
    assert noise_rows(directory) == noise_rows(run)


def test_a_fisher_without_a_null_space_is_an_error_that_names_the_option(tmp_path: Path) -> None:
    made = learner()
    made.keep_in(tmp_path)
    for _ in made.run():
        if made.measured:
            break
    made.__dict__["_fisher"] = {name: torch.ones_like(f) for name, f in made._fisher.items()}
    with pytest.raises(RunError, match=r"no null space.*--tolerance"):
        list(made.run())
