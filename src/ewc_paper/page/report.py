"""The page of one run, of several, of a directory of runs, or of a sweep."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ewc_paper.errors import RunError
from ewc_paper.page.document import LIMIT, document
from ewc_paper.page.markup import Markup, join, tag
from ewc_paper.page.sections import run_section
from ewc_paper.page.sweep_section import sweep_section
from ewc_paper.page.tables import table_markup
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.files import refuse_links, replace_file
from ewc_paper.sweeps.sweep import Sweep

FILE_NAME = "report.html"
ROOM = LIMIT - 800_000  # bytes for the runs, beside scripts and style
SAME = ("experiment", "versions")  # entries of a config that are no options


def write_report(directory: Path) -> Path:
    """Write the page of a run or a sweep into its directory, and return the file."""
    return replace_file(directory / FILE_NAME, build_page([directory]))


def build_page(directories: Sequence[Path], *, live: bool = False) -> bytes:
    """Return the page of runs and of directories of runs, or of a sweep if it is alone.

    A damaged run raises RunError if it is the only one; among others, its section says what is
    wrong with it.
    """
    if len(directories) == 1 and (sweep := Sweep(directories[0])).exists:
        refuse_links(sweep.path)
        name = sweep.path.resolve().name
        content = join(tag("h1", name), sweep_section(sweep, "sweep0", ROOM))
        return document(name, content, live=live)
    runs = [run for directory in directories for run in runs_in(directory)]
    if len(runs) == 1:
        name, experiment = _name(runs[0]), str(runs[0].config().get("experiment"))
        content = join(tag("h1", name), run_section(runs[0], experiment, "run0", ROOM))
        return document(name, content, live=live)
    title = ", ".join(directory.resolve().name for directory in directories)
    return document(title, _several(title, runs), live=live)


def runs_in(directory: Path) -> list[RunDirectory]:
    """Return the run in a directory, or those in the directories within it, as of a sweep."""
    refuse_links(directory)
    if (directory / "config.json").is_file():
        return [RunDirectory(directory)]
    found = sorted(directory.glob("*/config.json")) or sorted(directory.glob("*/*/config.json"))
    if not found:
        raise RunError(
            f"{directory} holds no run: expected a config.json in it, or in directories within"
        )
    return [RunDirectory(file.parent) for file in found]


def _several(title: str, runs: Sequence[RunDirectory]) -> Markup:
    """Return an overview and, as long as there is room, a section per run."""
    sections: list[Markup] = []
    room = ROOM
    for number, run in enumerate(runs):
        section = _section_or_error(run, f"run{number}", room // 2)
        if len(section) > room:
            break
        room -= len(section)
        sections.append(section)
    left = len(runs) - len(sections)
    rest = f"{left} more runs do not fit into one page: give their directories to `ewc report`."
    return join(
        tag("h1", title),
        _overview(runs),
        *sections,
        tag("p", rest) if left else Markup(""),
    )


def _section_or_error(run: RunDirectory, identifier: str, budget: int) -> Markup:
    try:
        return run_section(run, _name(run), identifier, budget)
    except (RunError, OSError) as error:
        heading = tag("h2", _name(run), id=identifier)
        return tag("section", heading, tag("p", str(error), class_="error"), class_="run")


def _overview(runs: Sequence[RunDirectory]) -> Markup:
    """Return a table of the runs with the options in which they differ."""
    configs = [_config(run) for run in runs]
    names = dict.fromkeys(name for config in configs for name in config if name not in SAME)
    texts = [{name: _text(config.get(name)) for name in names} for config in configs]
    differing = [name for name in names if len({text[name] for text in texts}) > 1]
    rows = [
        [_name(run), str(config.get("experiment", "")), str(len(run.parts()))]
        + [text[name] for name in differing]
        for run, config, text in zip(runs, configs, texts, strict=True)
    ]
    head = ["run", "experiment", "networks", *differing]
    return table_markup("The runs, with the options in which they differ", head, rows)


def _name(run: RunDirectory) -> str:
    return run.path.resolve().name


def _config(run: RunDirectory) -> dict[str, Any]:
    try:
        return run.config()
    except RunError:
        return {}  # its section says what is wrong


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
