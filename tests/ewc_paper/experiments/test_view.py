"""Every experiment is shown from its directory, which is checked before."""

import json
import multiprocessing
import os
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from support.games import make_games
from support.runs import (
    MAKE,
    change_record,
    make_learning_curves,
    make_many_tasks,
    make_perturbation,
    make_schematic,
    rewrite_record,
    write_run,
)
from support.runs import MAKE as MAKE_SMALL

from ewc_paper.cli import main
from ewc_paper.errors import RunError
from ewc_paper.experiments import SUMMARIES, many_tasks
from ewc_paper.experiments.view import Layout, Paper, check_run, draw, seed_name, view_of
from ewc_paper.runs.directory import RunDirectory


def test_every_experiment_has_a_view(tmp_path: Path) -> None:
    for experiment in SUMMARIES:
        view = view_of(write_run(tmp_path / experiment, {"experiment": experiment}, {}))
        assert isinstance(view.LAYOUT, Layout)
        assert isinstance(view.PAPER, Paper)


@pytest.mark.parametrize("make", [*MAKE.values(), make_games], ids=[*MAKE, "games"])
def test_figures_are_written_into_the_run_directory(
    make: Callable[[Path], RunDirectory], tmp_path: Path
) -> None:
    run = make(tmp_path)
    figures = [file for file in draw(view_of(run), run) if file.suffix == ".png"]
    assert figures
    for figure in figures:
        assert figure.parent == tmp_path / "figures"
        assert matplotlib.image.imread(figure).std() > 0.01  # something is drawn


@pytest.mark.parametrize("make", [*MAKE.values(), make_games], ids=[*MAKE, "games"])
def test_what_is_drawn_is_what_the_figures_are_made_of(
    make: Callable[[Path], RunDirectory], tmp_path: Path
) -> None:
    run = make(tmp_path)
    drawn = {file.stem for file in draw(view_of(run), run, "svg") if file.suffix == ".svg"}
    found = view_of(run).figures(run)
    assert {figure.name for figure in found} - {"games-clips"} == drawn
    assert all(figure.title and figure.caption and figure.panels for figure in found)


def test_the_seed_of_a_part_is_in_its_config_or_its_name(tmp_path: Path) -> None:
    parts = {"a": ({"seed": 3}, []), "b": ({"recipe": {"seed": 4}}, []), "c": ({}, [])}
    run = write_run(tmp_path, {"experiment": "strength"}, parts)
    assert [seed_name(part) for part in run.parts()] == ["seed 3", "seed 4", "c"]


@pytest.mark.parametrize("experiment", ["alchemy", None, ["games"]])
def test_an_unknown_experiment_is_refused(experiment: object, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"holds a run of (alchemy|no experiment): expected one of"):
        view_of(write_run(tmp_path, {"experiment": experiment}, {}))


MAKE = {**MAKE_SMALL, "games": make_games}
STORED = sorted(Path(__file__).parents[3].glob("docs/results/*/config.json"))


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())
def test_a_run_passes(make: Callable[[Path], RunDirectory], tmp_path: Path) -> None:
    check_run(make(tmp_path))


@pytest.mark.parametrize("config", STORED, ids=lambda config: config.parent.name)
def test_a_stored_result_passes(config: Path) -> None:
    check_run(RunDirectory(config.parent))


def change(file: Path, **changes: Any) -> None:
    """Change the last JSON object of a file."""
    if file.suffix == ".json":
        change_record(file, **changes)
        return
    *before, last = file.read_text().splitlines()
    lines = [*before, json.dumps(json.loads(last) | changes)]
    file.write_text("".join(f"{line}\n" for line in lines))


ROW = "parts/{}/metrics.jsonl"
PART = "parts/{}/config.json"


@pytest.mark.parametrize(
    ("experiment", "file", "changes", "said"),
    [
        ("learning-curves", "config.json", {"tasks": 1_000_000}, "tasks: expected a whole number"),
        ("learning-curves", "config.json", {"epochs": "two"}, "epochs: expected a number"),
        ("learning-curves", ROW.format("ewc"), {"accuracy": [0.5]}, "accuracy: expected 2 values"),
        ("learning-curves", ROW.format("ewc"), {"accuracy": [9.7, 0.5]}, "accuracy.0: expected"),
        ("learning-curves", ROW.format("ewc"), {"epoch": float("nan")}, "epoch: expected a number"),
        ("learning-curves", ROW.format("ewc"), {"task": 7}, "task: expected a whole number"),
        ("learning-curves", PART.format("ewc"), {"recipe": 3}, "recipe: expected an object"),
        ("many-tasks", PART.format("ewc-0"), {"label": "\x1b[2J"}, "label: expected one of"),
        ("strength", PART.format("1-0"), {"recipe": {"how": "x"}}, "recipe.tasks: expected"),
        ("fisher-overlap", PART.format("8"), {"square": "8"}, "square: expected"),
        ("fisher-overlap", ROW.format("8"), {"overlap": {}}, "overlap: expected a list"),
        ("schematic", ROW.format("schematic"), {"points": [[1]]}, "points.0: expected 2 values"),
        ("perturbation", "config.json", {"game": "\x1b]0;title\x07"}, "game: expected a short"),
        ("perturbation", ROW.format("seed0"), {"scores": []}, "scores: expected 1 to"),
        ("recognition", ROW.format("seed0"), {"game": "Chess"}, "game: expected one of"),
        ("games", PART.format("plain-seed0"), {"games": 3}, "games: expected a list"),
        ("games", ROW.format("plain-seed0"), {"normalized": {}}, "normalized.Pong: expected"),
        ("games", ROW.format("plain-seed0"), {"kind": 5}, "kind: expected a short text"),
        (
            "games",
            ROW.format("ewc-fmn-seed0"),
            {"kind": "train", "game": "Pong", "recognized": {"1000000000": 1}},
            "recognized.1000000000: expected|recognized: expected one of",
        ),
        (
            "games",
            ROW.format("ewc-fmn-seed0"),
            {"recognized": {"Pong": {"0": 0}}},
            "Pong.0: expected",
        ),
        (
            "games",
            ROW.format("ewc-fmn-seed0"),
            {"recognized": {"Chess": {}}},
            "recognized: expected",
        ),
    ],
)
def test_what_cannot_be_drawn_is_named(
    experiment: str, file: str, changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    run = MAKE[experiment](tmp_path)
    change(tmp_path / file, **changes)
    with pytest.raises(RunError, match=f"{file} cannot be drawn: .*(?:{said})"):
        check_run(run)


def test_what_does_not_fit_together_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_schematic(tmp_path)
    file = tmp_path / "parts" / "schematic" / "metrics.jsonl"
    landscape, *ways = file.read_text().splitlines()
    narrow = json.dumps(json.loads(landscape) | {"across": [0, 1, 2]})
    file.write_text("".join(f"{line}\n" for line in (narrow, *ways)))
    assert main(["figure", str(tmp_path)]) == 1
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"ewc: {tmp_path} cannot be drawn: its files do not fit together")
    assert complaint.count("\n") == 1


def test_a_part_without_its_config_is_not_left_out(tmp_path: Path) -> None:
    run = make_many_tasks(tmp_path)
    (tmp_path / "parts" / "ewc-0" / "config.json").unlink()
    assert set(many_tasks.averages(run)) == {"single"}  # as if it had never been
    with pytest.raises(RunError, match="ewc-0 is not a run directory"):
        check_run(run)


def test_a_damaged_clip_is_found_with_the_other_files(tmp_path: Path) -> None:
    run = make_games(tmp_path)
    (clip,) = tmp_path.glob("parts/plain-seed0/clips/*.npz")
    clip.write_bytes(b"")
    with pytest.raises(RunError, match=r"Pong\.npz is damaged: expected frames"):
        check_run(run)


@pytest.mark.parametrize("name", ["figures", "figures/learning-curves.png"])
def test_a_figure_is_not_drawn_through_a_link(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_learning_curves(tmp_path / "run")
    target = tmp_path / "target"
    target.mkdir() if name == "figures" else target.write_text("years of work")
    (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "run" / name).symlink_to(target)
    assert main(["figure", str(tmp_path / "run")]) == 1
    assert f"{name} is a symbolic link" in capsys.readouterr().err
    assert not list(target.iterdir()) if name == "figures" else target.read_text()


def test_a_figure_is_not_drawn_into_the_other_name_of_a_file(tmp_path: Path) -> None:
    make_learning_curves(tmp_path / "run")
    (tmp_path / "target").write_text("years of work")
    (tmp_path / "run" / "figures").mkdir()
    os.link(tmp_path / "target", tmp_path / "run" / "figures" / "learning-curves.png")
    assert main(["figure", str(tmp_path / "run")]) == 0
    assert (tmp_path / "target").read_text() == "years of work"


def test_markup_in_a_name_is_shown_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_perturbation(tmp_path)
    change(tmp_path / "config.json", game="[red]Pong[/red]")
    assert main(["figure", str(tmp_path)]) == 0
    assert "[red]Pong[/red]" in capsys.readouterr().out


def figure_without_rights(path: Path, said: Path) -> None:
    sys.stderr = open(said, "w", buffering=1)  # noqa: SIM115
    if os.geteuid() == 0:
        os.seteuid(65534)  # nobody, to whom a mode means something
    os._exit(main(["figure", str(path)]))


def test_a_directory_that_may_not_be_written_is_one_line() -> None:
    with tempfile.TemporaryDirectory() as place:
        run = make_learning_curves(Path(place) / "run")
        main(["figure", str(run.path)])  # all that drawing imports is there in the child
        (run.figures / "learning-curves.png").unlink()
        os.chmod(place, 0o755)
        os.chmod(run.figures, 0o555)
        child = multiprocessing.get_context("fork").Process(
            target=figure_without_rights, args=(run.path, Path(place) / "said")
        )
        child.start()
        child.join()
        said = (Path(place) / "said").read_text()
    figure = run.figures / "learning-curves.png"
    assert said == f"ewc: cannot write {figure} (Permission denied)\n"
    assert child.exitcode == 1


HOSTILE = (None, True, -1, 10**6, 10**400, 1e308, float("nan"), "", "\x1b[2J", "[red]", [], {})


def spoil(value: Any, chance: random.Random) -> Any:
    """The value with one thing inside it, chosen at random, that is another or missing."""
    if not value or not isinstance(value, dict | list) or chance.random() < 0.15:
        return chance.choice(HOSTILE)
    key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
    changed = value.copy()
    if chance.random() < 0.1:
        del changed[key]
    else:
        changed[key] = spoil(value[key], chance)
    return changed


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("experiment", MAKE)
def test_any_value_in_any_file_is_drawn_or_one_line(
    experiment: str, seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(f"{experiment} {seed}")
    MAKE[experiment](tmp_path)
    file = chance.choice(sorted(tmp_path.rglob("*.json*")))
    lines = [] if file.suffix == ".json" else file.read_text().splitlines()
    if file.suffix == ".json":
        spoilt = spoil(json.loads(file.read_text()), chance)
        if isinstance(spoilt, dict):
            rewrite_record(file, spoilt)
        else:
            file.write_text(json.dumps(spoilt))
    if lines:
        spoiled = chance.randrange(len(lines))
        lines[spoiled] = json.dumps(spoil(json.loads(lines[spoiled]), chance))
        file.write_text("".join(f"{line}\n" for line in lines))
    code = main(["figure", str(tmp_path)])
    out, err = capsys.readouterr()
    assert "\x1b" not in out + err
    if code:
        assert code == 1
        assert err.startswith("ewc: ")
        assert err.count("\n") == 1
