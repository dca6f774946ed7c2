"""A trained agent with noise on its weights: measured at each size, the same after a stop."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.runs import as_text, make_perturbation, run_through, write_run
from torch import Tensor, nn

from ewc.perturbation import perturbed
from ewc_paper.errors import RunError
from ewc_paper.experiments import perturbation
from ewc_paper.experiments.perturbation import NoiseLearner, Perturbations, at_every_pass
from ewc_paper.experiments.view import draw
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.loop import run_resumable


def test_every_seed_is_one_network_that_learns_the_game_alone() -> None:
    parts = Perturbations.preset("quick", seed=4, seeds=2, scales=(0.1, 0.2)).parts()
    assert [part.config["seed"] for part in parts] == [4, 5]
    for part in parts:
        assert part.config["arm"] == "single"
        assert part.config["games"] == part.config["schedule"] == ["minatar/breakout"]
        assert tuple(part.config["noise"]["scales"]) == (0.1, 0.2)


def test_a_game_without_a_known_score_is_refused() -> None:
    with pytest.raises(RunError, match="--game: no human score is known for Tetris"):
        Perturbations.preset("quick", game="Tetris")


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
    run_through(learner(), directory)
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
    directory = RunDirectory(tmp_path)
    for _, row in run_resumable(learner(), directory, checkpoint_seconds=0):
        if row and row["kind"] == "noise" and row["scale"] == 3.0:
            break  # killed, before this row is in a checkpoint
    assert 0 < len(noise_rows(directory)) < len(noise_rows(run))
    run_through(learner(), directory)
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


def test_every_shape_that_can_be_run_has_a_label() -> None:
    assert tuple(perturbation.SHAPE_LABELS) == Perturbations().shapes


def test_the_table_has_scores_with_and_without_noise(tmp_path: Path) -> None:
    shown = as_text(perturbation.table(make_perturbation(tmp_path)))
    values = (
        "inverse Fisher",
        "random player",
        "1.75 ± 0.35",
        "100.25 ± 0.35",
        "59.65 ± 0.35",
        "18.25 ± 0.35",
    )
    assert all(value in shown for value in values)


def test_sizes_are_sorted_and_no_noise_is_apart(tmp_path: Path) -> None:
    without_noise, with_noise = perturbation.scores(make_perturbation(tmp_path))
    assert without_noise == [100.0, 100.5]
    assert {shape: list(sizes) for shape, sizes in with_noise.items()} == {
        shape: [0.01, 0.1] for shape in ("uniform", "inverse-fisher", "nullspace")
    }


def test_the_random_player_is_drawn_where_it_was_measured(tmp_path: Path, drawn: Any) -> None:
    draw(perturbation, make_perturbation(tmp_path))
    assert drawn.legends["perturbation"][-2:] == ["no noise", "random player"]


@pytest.mark.parametrize("shapes", [("nullspace", "uniform"), ("uniform", "nullspace")])
def test_shapes_are_in_the_order_given(shapes: tuple[str, ...], tmp_path: Path, drawn: Any) -> None:
    rows = [{"kind": "noise", "shape": s, "scale": 0.1, "scores": [1.0]} for s in sorted(shapes)]
    config = {"experiment": "perturbation", "game": "Pong", "shapes": list(shapes)}
    draw(perturbation, write_run(tmp_path, config, {"seed0": ({}, rows)}))
    assert drawn.legends["perturbation"] == [perturbation.SHAPE_LABELS[shape] for shape in shapes]
