"""What experiments share: options that are used, and stored results that can be drawn again."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.runs import MAKE, OPTIONS, write_data

import ewc_paper.experiments
from ewc.recognition import RecognizerConfig
from ewc_paper.errors import RunError
from ewc_paper.experiments import EXPERIMENTS, SUMMARIES
from ewc_paper.experiments.experiment import Experiment
from ewc_paper.experiments.many_tasks import best_figures
from ewc_paper.experiments.view import draw, view_of
from ewc_paper.figures.plot import draw_figures
from ewc_paper.games.config import AgentConfig
from ewc_paper.mnist.config import TrainingConfig
from ewc_paper.options import limits, value_type
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Part
from ewc_paper.sweeps.sweep import Sweep

DOCS = Path(__file__).parents[3] / "docs"
FOLDERS = Path(ewc_paper.experiments.__file__).parent
SHARED = {"__init__", "experiment", "view", "permuted_mnist", "playing"}


def test_every_file_and_folder_is_an_experiment() -> None:
    folders = {file.parent.name for file in FOLDERS.glob("*/run.py")}
    files = {file.stem for file in FOLDERS.glob("*.py")} - SHARED
    assert folders | files == {name.replace("-", "_") for name in SUMMARIES}
    assert list(EXPERIMENTS) == list(SUMMARIES)
    assert len(EXPERIMENTS) == len(SUMMARIES)


def test_the_class_of_an_experiment_has_its_name() -> None:
    for name, config in EXPERIMENTS.items():
        assert config.name == name


def test_every_experiment_has_a_page_and_a_small_run() -> None:
    for name in SUMMARIES:
        assert (DOCS / "experiments" / f"{name}.md").exists()
        for place in (DOCS / "experiments" / "README.md", DOCS.parent / "mkdocs.yml"):
            assert f"{name}.md" in place.read_text(encoding="utf-8"), f"{place} lacks {name}.md"
    assert {*MAKE, "games"} == SUMMARIES.keys()  # games have a file of their own: support/games.py


def test_an_unknown_experiment_is_not_there() -> None:
    with pytest.raises((KeyError, ImportError)):
        EXPERIMENTS["alchemy"]


def test_the_table_needs_no_torch() -> None:
    program = "import sys, ewc_paper.experiments; print('torch' in sys.modules)"
    out = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert out.stdout.strip() == "False"


def test_workers_need_no_matplotlib() -> None:
    program = "import sys; from ewc_paper.experiments import EXPERIMENTS; dict(EXPERIMENTS)"
    out = subprocess.run(
        [sys.executable, "-c", f"{program}; print('matplotlib' in sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert out.stdout.strip() == "False"


STORED = sorted(config.parent for config in DOCS.glob("results/*/config.json"))


@pytest.mark.parametrize(
    ("experiment", "preset"),
    [(experiment, preset) for experiment in EXPERIMENTS.values() for preset in experiment.presets],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_presets_fit_and_name_their_parts_apart(experiment: type[Experiment], preset: str) -> None:
    assert {"quick", "laptop", "paper"} <= experiment.presets.keys()
    parts = experiment.preset(preset).parts()
    assert len({part.name for part in parts}) == len(parts) > 0
    assert all(json.dumps(part.config, allow_nan=False) for part in parts)
    assert all(one.metadata["help"] for one in fields(experiment))


@pytest.mark.parametrize(
    ("experiment", "option", "value", "said"),
    [
        ("learning-curves", "square", 29, "--square must be at most 28, got 29"),
        ("learning-curves", "tasks", 0, "--tasks must be at least 1, got 0"),
        ("learning-curves", "strength", -1.0, "--strength must be at least 0, got -1.0"),
        ("learning-curves", "strength", float("nan"), "--strength must be at least 0, got nan"),
        ("learning-curves", "methods", ("ewc", "magic"), "--methods must be one of .*, got magic"),
        ("learning-curves", "methods", (), "--methods needs at least one value"),
        ("learning-curves", "data", "/nowhere", "--data must be a directory"),
        ("fisher-overlap", "squares", (8, 30), "--squares must be at most 28, got 30"),
        ("strength", "strengths", (1.0, -2.0), "--strengths must be at least 0, got -2.0"),
        ("strength", "strengths", (10.0, 10.0000001), "--strengths must all differ in their first"),
        (
            "learning-curves",
            "methods",
            ("sgd", "sgd"),
            "--methods must all differ, got sgd and sgd",
        ),
        ("learning-curves", "methods", ("dropout",), "need --validation-samples of at least 1"),
        ("learning-curves", "width", 20_000, "has 4.2e.08 weights, more than 1e.08"),
        ("many-tasks", "validation_samples", 0, "need --validation-samples of at least 1"),
        ("many-tasks", "seeds", 10**9, "more than 10,000 networks"),
        ("schematic", "samples", 1_000_000, "take 26.2 GB: choose a smaller --grid or --samples"),
    ],
)
def test_what_does_not_fit_is_refused(experiment: str, option: str, value: Any, said: str) -> None:
    with pytest.raises(RunError, match=said):
        EXPERIMENTS[experiment].preset("quick", **{option: value}).parts()


@pytest.mark.parametrize("stored", STORED, ids=lambda path: path.name)
def test_a_stored_result_is_made_of_the_parts_that_were_stored(stored: Path) -> None:
    """Options may have come and gone since; those that are there still mean the same."""
    config = RunDirectory(stored).config() | {"agents": None}  # whose directory is not stored
    made = {part.name: part for part in EXPERIMENTS[config["experiment"]].from_dict(config).parts()}
    parts = RunDirectory(stored).parts()
    assert made.keys() == {part.name for part in parts}
    for part in parts:
        assert_agrees(part.config() | {"agents": None}, made[part.name].config)


def assert_agrees(stored: dict[str, Any], made: dict[str, Any]) -> None:
    made = json.loads(json.dumps(made))
    for key in stored.keys() & made.keys():
        if isinstance(made[key], dict):
            assert_agrees(stored[key], made[key])
        else:
            assert made[key] == stored[key], key


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_options_come_back_from_their_json(experiment: str) -> None:
    config = EXPERIMENTS[experiment].preset("laptop")
    stored = json.loads(json.dumps({**config.to_dict(), "versions": {"ewc": "0"}}))
    assert EXPERIMENTS[experiment].from_dict(stored) == config
    with pytest.raises(RunError, match="--seed must be a whole number, got x"):
        EXPERIMENTS[experiment].from_dict({**stored, "seed": "x"})


def test_options_to_look_at_are_restored_without_reading_other_files(tmp_path: Path) -> None:
    stored = EXPERIMENTS["recognition"].preset("laptop").to_dict() | {"agents": str(tmp_path / "x")}
    assert EXPERIMENTS["recognition"].restored(stored).agents == stored["agents"]
    with pytest.raises(RunError):
        EXPERIMENTS["recognition"].from_dict(stored)
    with pytest.raises(RunError, match="--seed must be a whole number"):
        EXPERIMENTS["recognition"].restored({**stored, "seed": "x"})


# What other options have to be for an option to matter.
NEEDED: dict[tuple[str, str], dict[str, Any]] = {
    ("many-tasks", "l2_strength"): {"methods": ("l2",)},
    ("many-tasks", "kronecker_strength"): {"methods": ("kronecker",)},
    ("learning-curves", "kronecker_strength"): {"methods": ("kronecker",)},
    ("games", "kronecker_strength"): {"arms": ("ewc-kronecker-labels",)},
}


def every_option() -> list[Any]:
    return [
        pytest.param(name, one, id=f"{name}-{one.name}")
        for name, experiment in EXPERIMENTS.items()
        for one in fields(experiment)
    ]


def another(one: Field[Any], value: Any) -> Any:
    """A value for the option that is not the present one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, tuple):
        return value[:-1] if len(value) > 1 else value[1:] * 2
    if one.metadata.get("choices"):
        return next(choice for choice in one.metadata["choices"] if choice != value)
    if value_type(one) is str:
        return "minatar/freeway"
    low, high = limits(one)
    tried = (low + 1, high) if value is None else (value + 1, value / 2, low + 1)
    return next(value_type(one)(number) for number in tried if low <= number <= high)


@pytest.mark.parametrize(("experiment", "one"), every_option())
def test_every_option_changes_what_is_run(experiment: str, one: Field[Any]) -> None:
    needed = NEEDED.get((experiment, one.name), {})
    config = replace(EXPERIMENTS[experiment].preset("laptop"), **needed)
    changed = replace(config, **{one.name: another(one, getattr(config, one.name))})
    assert described(changed.parts()) != described(config.parts())


def described(parts: list[Part]) -> list[tuple[str, dict[str, Any]]]:
    return [(part.name, part.config) for part in parts]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The settings of learners that anything but their own checks reads."""
    names: set[str] = set()
    checks = RecognizerConfig.__module__

    def noting(self: Any, name: str) -> Any:
        if sys._getframe(1).f_globals["__name__"] != checks:
            names.add(name)
        return object.__getattribute__(self, name)

    for config in (AgentConfig, TrainingConfig):
        monkeypatch.setattr(config, "__getattribute__", noting)
    return names


def run_all(parts: list[Part], directory: Path) -> None:
    for part in parts:
        learner = part.make(part.config)
        if hasattr(learner, "keep_in"):
            (directory / part.name).mkdir()
            learner.keep_in(directory / part.name)
        for _ in learner.run():
            pass


@pytest.mark.parametrize(
    ("experiment", "changes"),
    [
        ("learning-curves", {}),
        ("many-tasks", {"validation_samples": 40}),
        ("fisher-overlap", {"squares": (8,)}),
        ("strength", {"strengths": (1.0,)}),
    ],
)
def test_every_setting_of_a_network_on_mnist_is_read(
    experiment: str, changes: dict[str, Any], read: set[str], tmp_path: Path
) -> None:
    tiny = {**OPTIONS, "data": str(write_data(tmp_path)), **changes}
    parts = EXPERIMENTS[experiment].preset("quick", **tiny).parts()
    run_all(parts, tmp_path)
    assert {name for part in parts for name in part.config["recipe"]} <= read


TINY: dict[str, Any] = {
    "environments": 2,
    "max_episode_steps": 12,
    "batch_size": 4,
    "target_every": 16,
    "replay_capacity": 64,
    "min_history": 8,
    "epsilon_start": 8,
    "epsilon_end": 16,
    "fisher_batches": 2,
    "segment_steps": 64,
    "test_episodes": 1,
    "table_episodes": 1,
    "report_every": 16,
}


@pytest.mark.parametrize(
    ("experiment", "changes"),
    [
        ("games", {"min_visit": 0, "visits": 1, "recognizer": "forget-me-not"}),
        ("perturbation", {"scales": (0.1,), "shapes": ("uniform",), "noise_episodes": 1}),
    ],
)
def test_every_setting_of_an_agent_is_read(
    experiment: str, changes: dict[str, Any], read: set[str], tmp_path: Path
) -> None:
    for optimizer in ("adam", "rmsprop"):
        (tmp_path / optimizer).mkdir()
        chosen = EXPERIMENTS[experiment].preset("quick", optimizer=optimizer, **TINY, **changes)
        run_all(chosen.parts(), tmp_path / optimizer)
        assert chosen.parts()[0].config["settings"].keys() <= read | {"max_lr"}
    assert "max_lr" in read


@pytest.mark.parametrize("stored", STORED, ids=lambda path: path.name)
def test_a_stored_result_is_drawn_again_from_its_small_files(stored: Path, tmp_path: Path) -> None:
    copy = tmp_path / stored.name
    shutil.copytree(stored, copy, ignore=shutil.ignore_patterns("figures"))
    run = RunDirectory(copy)
    assert view_of(run).table(run).row_count > 0
    figures = [file for file in draw(view_of(run), run, "svg") if file.suffix == ".svg"]
    assert {figure.name for figure in figures} == {one.name for one in stored.glob("figures/*")}
    for figure in figures:
        assert marks(figure) == marks(stored / "figures" / figure.name)


def marks(figure: Path) -> list[tuple[str, int]]:
    """What is drawn in an SVG: each kind of element, how often; the same in any version."""
    names = [element.tag.rpartition("}")[2] for element in ElementTree.parse(figure).iter()]
    counted = sorted(Counter(names).items())
    assert dict(counted)["path"] > 10
    return [(name, count) for name, count in counted if name in ("g", "clipPath")]


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
    chosen = sweep.chosen_directories(sweep.read())
    (figure,) = draw_figures(best_figures(chosen), tmp_path, "svg")
    assert marks(figure) == marks(sweep.figures / figure.name)
    page = (DOCS / "experiments" / "many-tasks.md").read_text()
    assert f"../results/many-tasks-search/figures/{figure.name}" in page
