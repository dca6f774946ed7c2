"""`ewc list` and `ewc runs`, and the examples of each help text."""

import html
import re
import shlex
from pathlib import Path

import pytest
from support.runs import InlineEngine, make_learning_curves, make_strength

from ewc_paper.cli import EXAMPLES, build_parser, main
from ewc_paper.cli.listing import runs_under
from ewc_paper.experiments import EXPERIMENTS, SUMMARIES, TIMES
from ewc_paper.experiments.schematic import Schematic
from ewc_paper.experiments.view import view_of
from ewc_paper.page.report import build_page
from ewc_paper.sweeps.search import search
from ewc_paper.sweeps.sweep import Plan, Sweep

STORED = Path(__file__).parents[3] / "docs" / "results"


def test_the_list_has_each_experiment_with_its_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert {name: list(times) for name, times in TIMES.items()} == {
        name: list(experiment.presets) for name, experiment in EXPERIMENTS.items()
    }
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    for name, summary in SUMMARIES.items():
        assert f"{name:16} {summary}\n" in out
    assert "laptop 8 min" in out


def test_runs_are_listed_with_state_and_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_learning_curves(tmp_path / "learning-curves" / "quick-0")
    run.part("ewc").save({}, finished=True)
    sweep = Sweep(tmp_path / "schematic" / "sweep-quick-0")
    sweep.write(Plan(Schematic(), ("lr=0.1,0.2",), 2, 1, grid=True))
    sweep.directory(0, 0).start(Schematic(lr=0.1).to_dict())
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "config.json").write_text('{"theme": "dark"}')  # of another program
    assert main(["runs", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    result = view_of(run).result(run)
    assert f"{run.path} learning-curves: 1 done, 2 waiting {result}" in out
    assert f"{sweep.path} a sweep of schematic: 2 waiting" in out
    assert runs_under(tmp_path) == [run.path, sweep.path]


def test_long_names_are_whole_and_texts_fit_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    run = make_learning_curves(tmp_path / ("n" * 100) / ("m" * 100))
    assert main(["runs", str(tmp_path)]) == 0
    path, *lines = capsys.readouterr().out.splitlines()
    assert path == str(run.path)
    assert len(lines) >= 3
    assert all(line.startswith("    ") and len(line) <= 60 for line in lines)


def test_what_is_damaged_is_listed_as_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_strength(tmp_path / "good")
    bad = make_learning_curves(tmp_path / "bad")
    bad.part("ewc").append({"task": 9})
    (tmp_path / "worse").mkdir()
    (tmp_path / "worse" / "config.json").write_text("[")
    assert main(["runs", str(tmp_path)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "1 damaged" in out
    assert "damaged: " in out
    assert main(["runs", str(run.path)]) == 0


@pytest.mark.parametrize("lost", ["config.json", "sweep.json"])
def test_what_has_lost_its_record_is_one_damaged_run(
    lost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_learning_curves(tmp_path / ("run" if lost == "config.json" else "sweep/trials/0"))
    if lost == "config.json":
        (run.path / lost).unlink()
    assert main(["runs", str(tmp_path)]) == 1
    top = tmp_path / ("run" if lost == "config.json" else "sweep")
    path, said = capsys.readouterr().out.split("\n    ", 1)
    assert path == str(top)
    assert " ".join(said.split()) == f"damaged: {top} is not a run directory: it has no config.json"


def test_no_run_is_said_and_no_directory_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no run in {tmp_path}\n"
    assert main(["runs", str(tmp_path / "nowhere")]) == 1
    assert "nowhere is no directory" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["schematic", "many-tasks-search"])
def test_the_result_of_a_stored_run_is_that_of_its_page(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", str(STORED / name)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    (card,) = re.findall(r'class="result">([^<]+)<', build_page([STORED / name]).decode())
    assert html.unescape(card) in out


def test_a_sweep_that_goes_on_has_its_best_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Sweep(tmp_path)
    plan = Plan(Schematic(samples=50), ("lr=0.1,0.2",), 2, 1, grid=True)
    sweep.path.mkdir(exist_ok=True)
    sweep.write(plan)
    for _ in search(sweep, plan, engine=InlineEngine(), checkpoint_seconds=1e9):
        pass
    assert main(["runs", str(tmp_path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"2 done Best so far is trial [01] with -0\.\d\d: minus the mean", out)


def example_lines(text: str) -> list[str]:
    return re.findall(r"^  (ewc .*)$", text.partition("examples:\n")[2], re.MULTILINE)


@pytest.mark.parametrize("command", EXAMPLES)
def test_the_examples_of_a_command_are_in_its_help_and_can_be_given(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [] if command == "ewc" else [command]
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--help"])
    check_examples(capsys.readouterr().out)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("command", ["run", "sweep"])
def test_the_examples_of_an_experiment_can_be_given(
    command: str, experiment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, experiment, "--help"])
    check_examples(capsys.readouterr().out)


def check_examples(text: str) -> None:
    lines = example_lines(text)
    assert lines
    for line in lines:
        arguments = shlex.split(line.partition(" > ")[0])[1:]
        assert build_parser(arguments).parse_args(arguments).do
