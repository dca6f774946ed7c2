"""Completion knows what the parser knows; bash is asked for real, other shells where they are."""

import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from ewc_paper.cli import build_parser, main
from ewc_paper.cli.completion import SHELLS, Place, named_experiments, places, script
from ewc_paper.experiments import EXPERIMENTS, SUMMARIES
from ewc_paper.options import flag


@pytest.fixture(scope="module")
def found() -> dict[str, Place]:
    return {place.words: place for place in places(build_parser(named_experiments()))}


def test_every_option_of_every_experiment_is_known_with_its_choices(
    found: dict[str, Place],
) -> None:
    for name, experiment in EXPERIMENTS.items():
        place = found[f"run {name}"]
        assert place.options.keys() >= {flag(field.name) for field in fields(experiment)}
        assert place.values["--preset"] == list(experiment.presets)
    assert found["run games"].values["--optimizer"] == ["rmsprop", "adam"]
    assert found["run"].names.keys() == SUMMARIES.keys()
    assert "--over" in found["sweep many-tasks"].options
    assert found["figure"].paths


def completed(source: Path, line: str) -> set[str]:
    """What bash suggests at the end of a line."""
    program = f"""
source {source}
COMP_WORDS=({line.replace("|", "''")})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_ewc
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return set(
        subprocess.run(
            ["bash", "-c", program], check=True, capture_output=True, text=True
        ).stdout.split()
    )


@pytest.fixture(scope="module")
def bash(found: dict[str, Place], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("bash") / "ewc"
    file.write_text(script("bash", list(found.values())))
    return file


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ewc ru", {"run", "runs"}),
        ("ewc run lear", {"learning-curves"}),
        ("ewc run games --preset a", {"atari-small", "atari-ten", "atari-ten-kronecker"}),
        ("ewc run games --seed 3 --segm", {"--segment-steps"}),
        ("ewc run games --optimizer |", {"rmsprop", "adam"}),
        ("ewc sweep strength --halv", {"--halving"}),
        ("ewc figure --form", {"--format"}),
        ("ewc figure --format |", {"png", "svg", "pdf"}),
        ("ewc completion |", {"bash", "zsh", "fish", "--help"}),
    ],
)
def test_bash_completes(bash: Path, line: str, expected: set[str]) -> None:
    assert completed(bash, line) == expected


def test_bash_completes_directories(bash: Path, tmp_path: Path) -> None:
    (tmp_path / "quick-0").mkdir()
    assert completed(bash, f"ewc status {tmp_path}/qu") == {f"{tmp_path}/quick-0"}
    assert completed(bash, f"ewc run games --out {tmp_path}/qu") == {f"{tmp_path}/quick-0"}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_gets_all_words_and_a_script_that_it_can_read(
    shell: str, found: dict[str, Place], tmp_path: Path
) -> None:
    text = script(shell, list(found.values()))
    for name in SUMMARIES:
        assert name in text
    for word in ("segment-steps", "checkpoint-seconds", "atari-ten", "halving"):
        assert word in text
    if shutil.which(shell):
        (tmp_path / "script").write_text(text)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True)


def test_the_command_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    assert "complete -c ewc" in capsys.readouterr().out
