"""The results stored under docs/results can be drawn again, and every figure is on a page."""

import json
import shutil
from pathlib import Path

import matplotlib.image
import pytest

from ewc_paper.experiments import EXPERIMENTS
from ewc_paper.experiments.many_tasks.figure import draw_best
from ewc_paper.experiments.view import view_of
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.sweeps.sweep import Sweep

DOCS = Path(__file__).parents[3] / "docs"
STORED = sorted(config.parent for config in DOCS.glob("results/*/config.json"))


@pytest.mark.parametrize("stored", STORED, ids=lambda path: path.name)
def test_a_stored_result_is_drawn_again_from_its_small_files(stored: Path, tmp_path: Path) -> None:
    copy = tmp_path / stored.name
    shutil.copytree(stored, copy, ignore=shutil.ignore_patterns("figures"))
    run = RunDirectory(copy)
    assert view_of(run).table(run).row_count > 0
    figures = view_of(run).draw(run)
    assert {figure.name for figure in figures} == {one.name for one in stored.glob("figures/*")}
    assert all(matplotlib.image.imread(figure).std() > 0.01 for figure in figures)


@pytest.mark.parametrize("stored", STORED, ids=lambda path: path.name)
def test_every_stored_figure_is_on_a_page(stored: Path) -> None:
    pages = "".join(page.read_text() for page in DOCS.glob("experiments/*.md"))
    for figure in stored.glob("figures/*"):
        assert f"../results/{stored.name}/figures/{figure.name}" in pages


@pytest.mark.parametrize("stored", STORED, ids=lambda path: path.name)
def test_the_options_of_a_stored_result_still_fit(stored: Path) -> None:
    config = RunDirectory(stored).config() | {"agents": None}  # whose directory is not stored
    experiment = EXPERIMENTS[config["experiment"]]
    options = json.loads(json.dumps(experiment.from_dict(config).to_dict()))
    kept = options.keys() & config.keys()  # some were stored before an option was there
    assert {name: options[name] for name in kept} == {name: config[name] for name in kept}


def test_the_figure_of_the_stored_sweep_is_drawn_again_and_on_a_page(tmp_path: Path) -> None:
    sweep = Sweep(DOCS / "results" / "many-tasks-search")
    (figure,) = draw_best(sweep.chosen_directories(sweep.read()), tmp_path)
    assert (sweep.figures / figure.name).is_file()
    assert matplotlib.image.imread(figure).std() > 0.01
    page = (DOCS / "experiments" / "many-tasks.md").read_text()
    assert f"../results/many-tasks-search/figures/{figure.name}" in page
