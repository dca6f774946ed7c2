"""The page of runs and sweeps, its sections, and the commands that repeat them."""

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.games import make_games
from support.runs import (
    MAKE,
    change_record,
    make_learning_curves,
    make_many_tasks,
    make_strength,
    write_run,
)

from ewc_paper.cli import build_parser, main
from ewc_paper.cli.parser import given_options
from ewc_paper.errors import RunError
from ewc_paper.experiments import EXPERIMENTS
from ewc_paper.experiments.many_tasks import ManyTasks
from ewc_paper.experiments.view import view_of
from ewc_paper.page.markup import LIMIT
from ewc_paper.page.report import (
    build_figure_page,
    build_page,
    duration,
    reproducing_command,
    run_section,
    runs_in,
    sweeping_command,
    write_report,
)
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.sweeps.sweep import Plan, Sweep

STORED = sorted(Path(__file__).parents[3].glob("docs/results/*/config.json"))


def headings(page: bytes) -> list[str]:
    return re.findall(r"<h[12][^>]*>([^<]*)</h", page.decode())


@pytest.mark.parametrize("config", STORED, ids=lambda config: config.parent.name)
def test_every_stored_run_has_a_page(config: Path) -> None:
    page = build_page([config.parent])
    assert len(page) < LIMIT
    assert page.count(b'class="chart"') > 0
    assert b"left out" not in re.sub(rb"<script.*?</script>|<table.*?</table>", b"", page)


def test_the_page_is_written_into_the_run_directory(tmp_path: Path) -> None:
    run = make_learning_curves(tmp_path / "first")
    file = write_report(run.path)
    assert file == tmp_path / "first" / "report.html"
    assert headings(file.read_bytes()) == ["first", "learning-curves"]
    assert write_report(run.path).read_bytes() == build_page(
        [run.path]
    )  # nothing of the day is in it


def test_a_directory_of_runs_has_an_overview(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    for number in (0, 1):
        make_learning_curves(sweep / f"trial{number}")
    change_record(sweep / "trial1" / "config.json", epochs=3)
    page = build_page([sweep])
    assert headings(page) == ["sweep", "trial0", "trial1"]
    overview = re.findall(r"<table>.*?</table>", page.decode(), re.DOTALL)[0]
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t", overview)
    assert cells[:4] == ["run", "experiment", "networks", "epochs"]
    assert cells[4:] == [
        "trial0",
        "learning-curves",
        "2",
        "2",
        "trial1",
        "learning-curves",
        "2",
        "3",
    ]


def test_several_runs_are_on_one_page(tmp_path: Path) -> None:
    runs = [make_many_tasks(tmp_path / "a").path, make_strength(tmp_path / "b").path]
    assert headings(build_page(runs)) == ["a, b", "a", "b"]


def test_a_damaged_run_among_others_says_what_is_wrong(tmp_path: Path) -> None:
    make_many_tasks(tmp_path / "good")
    make_learning_curves(tmp_path / "bad").part("ewc").append({"task": 9})
    (tmp_path / "worse").mkdir()
    (tmp_path / "worse" / "config.json").write_text("[")
    page = build_page([tmp_path]).decode()
    assert headings(page.encode()) == [tmp_path.name, "bad", "good", "worse"]
    assert "task: expected a whole number" in page
    assert "worse/config.json is damaged" in page
    with pytest.raises(RunError, match="task: expected a whole number"):
        build_page([tmp_path / "bad"])


def test_runs_that_do_not_fit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        make_learning_curves(tmp_path / f"run{number}")
    one, four = (len(build_page([place])) for place in (tmp_path / "run0", tmp_path))
    section = (four - one) // 3
    monkeypatch.setattr("ewc_paper.page.report.ROOM", 2 * section)
    page = build_page([tmp_path])
    shown = headings(page)[1:]
    assert shown in (["run0"], ["run0", "run1"], ["run0", "run1", "run2"])
    assert f"{4 - len(shown)} more runs do not fit into one page" in page.decode()
    assert len(page) < one + 2 * section


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_directory_without_a_run_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match=f"{name} holds no run: expected a config.json"):
        runs_in(tmp_path / name)


def test_nothing_outside_is_read_through_a_link(tmp_path: Path) -> None:
    run = make_learning_curves(tmp_path / "run")
    (tmp_path / "secret").write_text("secret")
    file = run.part("ewc").path / "config.json"
    file.unlink()
    os.symlink(tmp_path / "secret", file)
    with pytest.raises(RunError, match="is a symbolic link"):
        build_page([run.path])


ROOM = 10**6


def panels(section: str) -> list[list[dict[str, Any]]]:
    """The panels of each figure, as page.js reads them."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', section)
    return [json.loads(one)["panels"] for one in found]


@pytest.mark.parametrize("make", [*MAKE.values(), make_games], ids=[*MAKE, "games"])
def test_every_experiment_has_all_of_its_figures(
    make: Callable[[Path], RunDirectory], tmp_path: Path
) -> None:
    run = make(tmp_path)
    section = run_section(run, "heading", "run0", ROOM)
    expected = [[panel.title for panel in one.panels] for one in view_of(run).figures(run)]
    assert [[panel["title"] for panel in one] for one in panels(section)] == expected
    assert view_of(run).PAPER.place in section
    assert "<table>" in section


def test_the_data_are_those_of_the_metrics(tmp_path: Path) -> None:
    run = make_learning_curves(tmp_path)
    ((first, second),) = panels(run_section(run, "heading", "run0", ROOM))
    rows = run.part("ewc").rows()
    ewc = first["series"][0]
    assert ewc["mean"] == pytest.approx([100 * row["accuracy"][0] for row in rows])
    assert ewc["x"] == [row["task"] * 2 + row["epoch"] for row in rows]
    assert second["series"][0]["mean"] == pytest.approx([98.1])


RESULTS = {
    "learning-curves": "Test accuracy after 2 tasks in turn: EWC 61.0 % on the first and 98.1 % on "
    "the last; plain SGD 61.0 % on the first and 98.1 % on the last.",
    "many-tasks": "Average test accuracy over 2 tasks learned in turn: EWC 85.0 %; a network that "
    "learns one task alone has 98.0 %.",
    "strength": "After 2 tasks the best average test accuracy is 87.5 %; within 1 point of it is "
    "the proximal pull for λ from 1 to 10.",
    "fisher-overlap": "Overlap of the Fishers of two tasks: 25.0 % in the first layer and 50.0 % "
    "in the last if 8×8 pixels are permuted; 25.0 % in the first layer and 50.0 % in the last if "
    "26×26 pixels are permuted.",
    "schematic": "Loss after task B: SGD 0.12 on A and 0.50 on B; L2 0.12 on A and 0.50 on B; EWC "
    "0.12 on A and 0.50 on B.",
    "perturbation": "The largest noise with which the agent keeps at least half of its score in "
    "Pong above that of a random player: none that was tried (uniform), 0.1 (inverse Fisher) and "
    "none that was tried (null space of the Fisher).",
    "recognition": "The game is recognized in 92.0 % of steps, 12 steps after a switch, with 3.0 "
    "contexts for 2 games.",
}


@pytest.mark.parametrize("name", MAKE)
def test_the_section_opens_with_the_result_beside_the_claim(name: str, tmp_path: Path) -> None:
    run = MAKE[name](tmp_path)
    assert view_of(run).result(run) == RESULTS[name]
    section = run_section(run, "heading", "run0", ROOM)
    places = [
        RESULTS[name],
        "The paper&#x27;s claim",
        'class="contents"',
        'id="run0-figure0"',
        'id="run0-facts"',
        'id="run0-numbers"',
        'id="run0-again"',
        "<summary>All options and versions",
    ]
    found = [section.index(place) for place in places]
    assert found == sorted(found)


@pytest.mark.parametrize("config", STORED, ids=lambda config: config.parent.name)
def test_the_contents_lead_to_what_is_there(config: Path) -> None:
    run = RunDirectory(config.parent)
    section = run_section(run, "heading", "run0", ROOM)
    assert view_of(run).result(run) in section.replace("&#x27;", "'")
    (nav,) = re.findall(r"<nav.*?</nav>", section)
    links = re.findall(r'href="#([^"]+)"', nav)
    ids = re.findall(r' id="([^"]+)"', section)
    assert len(links) >= 5
    assert set(links) <= set(ids)
    assert len(ids) == len(set(ids))


def facts(section: str) -> dict[str, str]:
    card = section.partition("What was run</h3>")[2].partition("</dl>")[0]
    return dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", card))


def test_the_facts_are_the_preset_the_seeds_and_the_times_of_a_run_made_here(
    tmp_path: Path,
) -> None:
    run = RunDirectory(tmp_path)
    run.start(ManyTasks.preset("laptop", seed=10).to_dict())
    known = facts(run_section(run, "heading", "run0", ROOM))
    assert known == {
        "experiment": "many-tasks",
        "preset": "laptop",
        "networks": "0 of 12",
        "seeds": "10 to 12",
    }
    times = {"process": 1, "seconds": 100, "made": 0, "parts": {}}
    times |= {"begun": 1_000_000_000, "all_seconds": 300}
    (tmp_path / "progress.json").write_text(json.dumps(times))
    shutil.copytree(tmp_path, tmp_path / "copy")  # whose files have the times of the copy
    known = facts(run_section(RunDirectory(tmp_path / "copy"), "heading", "run0", ROOM))
    assert known["begun"] == "9 September 2001, 01:46 UTC"
    assert known["duration"] == "5 minutes, breaks left out"
    (tmp_path / "progress.json").write_text(json.dumps(times | {"begun": 1e15}))
    assert "begun" not in facts(run_section(run, "heading", "run0", ROOM))


def test_options_that_differ_from_the_preset_are_counted(tmp_path: Path) -> None:
    for changes, said in (
        ({"lr": 0.05}, "laptop, with 1 other option"),
        ({"lr": 0.05, "momentum": 0.5}, "laptop, with 2 other options"),
    ):
        run = RunDirectory(tmp_path / said)
        run.start(ManyTasks.preset("laptop", **changes).to_dict())
        assert facts(run_section(run, "heading", "run0", ROOM))["preset"] == said


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59.6, "60 seconds"), (119, "119 seconds"), (120, "2 minutes"), (9000, "2.5 hours")],
)
def test_a_duration_is_said_as_people_do(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_figure_can_have_a_page_of_its_own(tmp_path: Path) -> None:
    run = make_games(tmp_path)
    page = build_figure_page(run.path, "games-clips").decode()
    assert [[panel["title"] for panel in one] for one in panels(page)] == [["Pong"]]
    assert "The numbers" not in page
    with pytest.raises(RunError, match="has no figure nothing"):
        build_figure_page(run.path, "nothing")


def test_texts_of_a_run_are_shown_and_not_run(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    config = {"experiment": "perturbation", "game": evil, evil: evil, "versions": {evil: evil}}
    rows = [{"kind": "noise", "shape": "uniform", "scale": 0.1, "scores": [1.0]}]
    run = write_run(tmp_path, config, {"seed0": ({}, rows)})
    section = run_section(run, evil, "run0", ROOM)
    assert evil not in section
    assert "alert(1)" in section
    assert "<script" not in re.sub(r'<script type="application/json">', "", section)


def test_a_figure_that_is_too_large_is_left_out_and_named(tmp_path: Path) -> None:
    section = run_section(make_learning_curves(tmp_path), "heading", "run0", 100)
    assert panels(section) == []
    assert "too large for the page" in section
    assert "97.00" in section


def test_a_run_says_whether_it_is_going_on_and_how_far_it_is(tmp_path: Path) -> None:
    run = make_learning_curves(tmp_path)
    assert "running" not in run_section(run, "heading", "run0", ROOM)
    with run.locked():
        section = run_section(run, "heading", "run0", ROOM)
    assert "<dd>running</dd>" in section
    assert "<dd>2 of 3</dd>" in section


@pytest.mark.parametrize("experiment", MAKE)
def test_a_run_that_has_just_begun_is_shown_too(experiment: str, tmp_path: Path) -> None:
    needed = {"tasks": 2, "epochs": 2, "game": "Pong", "games": ["Pong"]}
    run = write_run(tmp_path, {"experiment": experiment, **needed}, {})
    assert "No measurement yet" in run_section(run, "heading", "run0", ROOM)


def test_options_of_another_version_have_no_command(tmp_path: Path) -> None:
    run = make_learning_curves(tmp_path)
    change_record(tmp_path / "config.json", lr=-1)
    section = run_section(run, "heading", "run0", ROOM)
    assert "do not fit this version" in section
    assert "--lr must be at least" in section
    assert "<dd>2</dd>" in section


def test_a_damaged_run_is_refused(tmp_path: Path) -> None:
    run = make_learning_curves(tmp_path)
    run.part("ewc").append({"task": 9})
    with pytest.raises(RunError, match="task: expected a whole number"):
        run_section(run, "heading", "run0", ROOM)


STORED_SWEEP = Path(__file__).parents[3] / "docs" / "results" / "many-tasks-search"


def tables(page: str) -> dict[str, list[list[str]]]:
    """The tables of a page: rows of cells by caption."""
    found = {}
    for table in re.findall(r"<table>(.*?)</table>", page, re.DOTALL):
        rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        caption = re.findall(r"<caption><span>(.*?)</span></caption>", table)[0]
        found[caption] = [re.findall(r"<t[hd][^>]*>([^<]*)</t", row) for row in rows]
    return found


def test_the_stored_sweep_is_shown_with_its_figure_and_tables() -> None:
    content = build_page([STORED_SWEEP])
    assert len(content) < LIMIT
    page = content.decode()
    assert page.count('class="chart"') == 1
    shown = tables(page)
    last = shown["average test accuracy in % over all tasks so far"][-1]
    assert last == ["10", "90.43 ± 2.05", "80.49 ± 0.52"]
    chosen = json.loads((STORED_SWEEP / "sweep.json").read_text())["chosen"]
    best = shown["chosen trials, on seeds that chose nothing"][1:]
    assert {row[0]: int(row[1]) for row in best} == chosen
    (trials,) = [rows for caption, rows in shown.items() if caption.startswith("many-tasks, score")]
    assert sorted(int(row[0]) for row in trials[1:]) == list(range(50))


def test_the_command_of_a_sweep_plans_the_same_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ewc_paper.cli.sweep._search", lambda *given: {})
    monkeypatch.setattr("ewc_paper.cli.sweep.show_sweep", lambda path: 0)
    stored = Sweep(STORED_SWEEP).read()
    words = sweeping_command(stored).split()
    assert words[:2] == ["ewc", "sweep"]
    assert main([*words[1:], "--out", str(tmp_path / "again")]) == 0
    assert Sweep(tmp_path / "again").read() == stored


def test_a_grid_and_halving_are_in_the_command() -> None:
    base = ManyTasks.preset("quick")
    grid = Plan(base, ("lr=0.1,0.2",), 2, 3, grid=True)
    assert sweeping_command(grid) == (
        "ewc sweep many-tasks --preset quick --over lr=0.1,0.2 --seeds 3 --best-seeds 0"
    )
    halved = Plan(base, ("lr=log:0.01..1",), 8, 1, grid=False, halving=2.0)
    assert "--trials 8 --seeds 1 --halving 2" in sweeping_command(halved)


def test_a_sweep_that_has_not_begun_has_a_page(tmp_path: Path) -> None:
    Sweep(tmp_path).write(Plan(ManyTasks.preset("quick"), ("lr=log:0.01..1",), 2, 1, grid=False))
    page = build_page([tmp_path]).decode()
    assert "this sweep" in page
    assert 'class="chart"' not in page


def test_a_damaged_run_is_named(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    shutil.copytree(STORED_SWEEP, sweep)
    part = sweep / "best" / "0024-ewc-seed1000" / "parts" / "ewc-0-seed1000"
    (part / "metrics.jsonl").write_text('{"task": "first", "task_ended": true}\n')
    with pytest.raises(
        RunError, match=r"0024-ewc-seed1000.*metrics.jsonl was changed after it was fin"
    ):
        build_page([sweep])


def test_a_sweep_ends_well_though_a_damaged_trial_leaves_it_without_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "sweep"
    shutil.copytree(STORED_SWEEP, sweep)
    part = sweep / "best" / "0024-ewc-seed1000" / "parts" / "ewc-0-seed1000"
    (part / "metrics.jsonl").write_text('{"task": "first", "task_ended": true}\n')
    monkeypatch.setattr("ewc_paper.cli.sweep._search", lambda *given: {})
    monkeypatch.setattr("ewc_paper.cli.sweep.show_sweep", lambda path: 0)
    assert main(["sweep", "many-tasks", "--out", str(sweep), "--resume"]) == 0
    said = capsys.readouterr()
    assert "page:" not in said.out
    assert "metrics.jsonl was changed after it was finished" in said.err


STORED_RUNS = sorted(Path(__file__).parents[3].glob("docs/results/*/config.json"))


def options_of(command: str) -> Any:
    """What `ewc` would run, if it finds the files that the options name."""
    _, *arguments = shlex.split(command)
    given = build_parser(arguments).parse_args(arguments)
    chosen = given.experiment.presets[given.preset]
    return given.experiment(**chosen | given_options(given, given.experiment))


@pytest.mark.parametrize("config", STORED_RUNS, ids=lambda config: config.parent.name)
def test_the_command_of_a_stored_run_has_its_options(config: Path) -> None:
    stored = RunDirectory(config.parent).config()
    experiment = EXPERIMENTS[stored["experiment"]]
    assert options_of(reproducing_command(stored)) == experiment.restored(stored)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_preset_is_recognized(name: str) -> None:
    for preset in EXPERIMENTS[name].presets:
        config = EXPERIMENTS[name].preset(preset)
        assert options_of(reproducing_command(config.to_dict())) == config


def test_changes_are_named_and_quoted() -> None:
    config = EXPERIMENTS["games"].preset("quick", double=False, seed=7)
    assert reproducing_command(config.to_dict()) == (
        "ewc run games --preset quick --no-double --seed 7"
    )
    odd = EXPERIMENTS["learning-curves"].preset("quick").to_dict() | {"data": "a b; rm -rf $HOME"}
    assert reproducing_command(odd).endswith("--data 'a b; rm -rf $HOME'")


def test_options_of_another_version_are_refused() -> None:
    with pytest.raises(RunError, match="--tasks must be at least 1"):
        reproducing_command({"experiment": "learning-curves", "tasks": 0})
