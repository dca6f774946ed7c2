"""`--help` shows a dozen options, `--help-all` every one in its group, and no other is taken."""

import re
from dataclasses import fields

import pytest

from ewc_paper.cli import main
from ewc_paper.cli.parser import Running
from ewc_paper.experiments import EXPERIMENTS
from ewc_paper.options import flag, groups, title

ALWAYS = {"--help", "--help-all", "--preset", "--out", "--resume", "--tensorboard"} | {
    "--workers",
    "--engine",
}


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="0"):
        main(["run", *arguments])
    return capsys.readouterr().out


def flags(text: str) -> set[str]:
    """The options that have a line of help."""
    return set(re.findall(r"^  (?:-h, )?(--[a-z0-9-]+)", text, re.MULTILINE))


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_help_shows_the_dozen_options_that_people_change_first(
    experiment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown([experiment, "--help"], capsys)
    assert flags(text) >= ALWAYS
    assert 5 <= len(flags(text) - ALWAYS) <= 13
    hidden = len(fields(EXPERIMENTS[experiment])) + len(fields(Running)) + 6 - len(flags(text))
    assert f"{hidden} more options: ewc run {experiment} --help-all" in text
    assert text.count("\n\n") == 5  # usage, summary, how, the dozen, the rest, and examples


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_help_all_shows_every_option_under_the_title_of_its_group(
    experiment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown([experiment, "--help-all"], capsys)
    options = (*fields(EXPERIMENTS[experiment]), *fields(Running))
    assert flags(text) - ALWAYS == {flag(one.name) for one in options} - ALWAYS
    assert "more options" not in text
    sections = {part.partition(":\n")[0]: part for part in text.split("\n\n")}
    for group, members in groups(EXPERIMENTS[experiment]).items():
        heading = "The experiment" if hasattr(group, "parts") else title(group)
        assert {flag(one.name) for one in members} <= flags(sections[heading])


def test_defaults_are_shown_by_preset_where_they_differ(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = " ".join(shown(["many-tasks", "--help"], capsys).split())
    assert "epochs per task (quick: 1, laptop: 2, hundred: 1, paper: 100)" in text
    assert "hidden layers (default: 2)" in text


@pytest.mark.parametrize(
    ("experiment", "option"),
    [
        *(("strength", option) for option in ("--strength=1", "--how=gradient")),
        ("fisher-overlap", "--square=8"),
        *(("perturbation", f"--{option}=1") for option in ("strength", "floor", "normalize")),
        *(("perturbation", f"--{option}=2") for option in ("levels", "prior", "window", "usual")),
        *(("perturbation", f"--{option}=9") for option in ("ewc-start", "min-visit", "side")),
        ("perturbation", "--fresh-optimizer"),
        ("recognition", "--history=1"),
        ("learning-curves", "--seeds=2"),
        ("games", "--hist=2"),
    ],
)
def test_an_option_that_is_not_used_or_not_written_in_full_is_refused(
    experiment: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["run", experiment, option])
    name = option.partition("=")[0]
    assert f"ewc run {experiment}: there is no option {name}" in capsys.readouterr().err
