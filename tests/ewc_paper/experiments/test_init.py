"""The table of experiments names every folder, and imports none before it is asked for."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.small_runs import MAKE

import ewc_paper.experiments
from ewc_paper.experiments import EXPERIMENTS, SUMMARIES

FOLDERS = Path(ewc_paper.experiments.__file__).parent


def test_every_folder_is_an_experiment() -> None:
    folders = {file.parent.name for file in FOLDERS.glob("*/run.py")}
    assert folders == {name.replace("-", "_") for name in SUMMARIES}
    assert list(EXPERIMENTS) == list(SUMMARIES)
    assert len(EXPERIMENTS) == len(SUMMARIES)


def test_the_class_of_an_experiment_has_its_name() -> None:
    for name, config in EXPERIMENTS.items():
        assert config.name == name


def test_every_experiment_has_a_page_and_a_small_run() -> None:
    docs = Path("docs/experiments")
    for name in SUMMARIES:
        assert (docs / f"{name}.md").exists()
        for place in (docs / "README.md", Path("mkdocs.yml")):
            assert f"{name}.md" in place.read_text(encoding="utf-8"), f"{place} lacks {name}.md"
    assert {*MAKE, "games"} == SUMMARIES.keys()  # games have a file of their own: game_runs.py


def test_an_unknown_experiment_is_not_there() -> None:
    with pytest.raises((KeyError, ImportError)):
        EXPERIMENTS["alchemy"]


def test_the_table_needs_no_torch() -> None:
    program = "import sys, ewc_paper.experiments; print('torch' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert out.stdout.strip() == "False"
