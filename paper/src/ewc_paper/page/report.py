"""The page of one run, of several, of a directory of runs, or of a sweep.

Each has a section: the result in one sentence beside the paper's claim, the main figure, what was
run, the other figures, tables, the command that repeats it, and all options with the versions.
"""

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ewc_paper.errors import RunError, fitting_files
from ewc_paper.experiments import EXPERIMENTS, SUMMARIES
from ewc_paper.experiments.experiment import Experiment
from ewc_paper.experiments.view import BestView, Paper, drawable
from ewc_paper.figures.panel import Figure
from ewc_paper.options import flag
from ewc_paper.page.charts import Sheet, figure_caption, number_tables, panel_data, sheets
from ewc_paper.page.markup import (
    LIMIT,
    Markup,
    anchored,
    document,
    join,
    script_data,
    table_markup,
    tag,
    terminal_tables,
)
from ewc_paper.runs.checksums import check_lost_plan
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.files import refuse_links, replace_file
from ewc_paper.runs.progress import read_progress
from ewc_paper.sweeps.sweep import Plan, Sweep
from ewc_paper.sweeps.table import best_table, trial_table

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


def build_figure_page(directory: Path, name: str) -> bytes:
    """Return a page with a single figure of a run, to be shown inside of another page.

    Args:
        directory: of the run.
        name: of the figure, such as `games-clips`.
    """
    with drawable(RunDirectory(directory)) as view:
        figures = [
            figure for figure in view.figures(RunDirectory(directory)) if figure.name == name
        ]
        if not figures:
            raise RunError(f"{directory} has no figure {name}")
        shown = join(*figure_markup(figures, "alone", ROOM))
    switches = tag("div", class_="switches shared")
    return document(figures[0].title, tag("div", switches, shown, class_="run", id="alone"))


def runs_in(directory: Path) -> list[RunDirectory]:
    """Return the run in a directory, or those in the directories within it, as of a sweep."""
    refuse_links(directory)
    if os.path.lexists(directory / "config.json"):  # also one that is damaged
        return [RunDirectory(directory)]
    configs = sorted(directory.glob("*/config.json")) or sorted(directory.glob("*/*/config.json"))
    configs = [file for file in configs if file.parent.parent.name != "parts"]
    check_lost_plan(directory)
    if not configs:
        raise RunError(
            f"{directory} holds no run: expected a config.json in it, or in directories within"
        )
    return [RunDirectory(file.parent) for file in configs]


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
    links = [(f"run{number}", _name(run)) for number, run in enumerate(runs[: len(sections)])]
    return join(
        tag("h1", title),
        contents("Runs", links),
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


FILM_SHARE = 0.5  # of the bytes of a section; base64 needs 4/3 of a film's


def run_section(run: RunDirectory, heading: str, identifier: str, budget: int) -> Markup:
    """Return all there is to say about a run.

    Args:
        run: the run; raises RunError if its files are damaged.
        heading: of the section.
        identifier: of the heading in the page.
        budget: bytes that its figures may need; one that needs more is left out.
    """
    with drawable(run) as view:
        config, figures = run.config(), view.figures(run)
        tables = list(terminal_tables(view.table(run)))
        numbers = join(*tables) if tables else tag("p", "No measurement yet.")
        return section(
            heading,
            identifier,
            SUMMARIES[config["experiment"]],
            beside=join(result_card(view.result(run)), paper_card(view.PAPER)),
            figures=figures,
            drawn=list(figure_markup(figures, identifier, budget)),
            facts=_facts(run, config),
            blocks={"numbers": ("The numbers", numbers), "again": (AGAIN, _command(config))},
            options=option_table(config),
        )


AGAIN = "Run it again"


def section(
    heading: str,
    identifier: str,
    lead: str,
    *,
    beside: Markup,
    figures: Sequence[Figure],
    drawn: Sequence[Markup],
    facts: Markup,
    blocks: Mapping[str, tuple[str, Markup]],
    options: Markup,
) -> Markup:
    """Return the section of a run or a sweep, with its contents.

    Args:
        heading: of the section.
        identifier: of the heading; those of what is below begin with it.
        lead: what is measured, in a sentence.
        beside: the cards that it opens with.
        figures: what is drawn, for the contents.
        drawn: the same, as markup; one that did not fit is a remark.
        facts: what was run.
        blocks: what comes after the figures: by end of the identifier, its heading and content.
        options: all options.
    """
    links = [(f"{identifier}-figure{at}", figure.title) for at, figure in enumerate(figures)]
    links.insert(1, (f"{identifier}-facts", "What was run"))
    links += [(f"{identifier}-{name}", title) for name, (title, _) in blocks.items()]
    return tag(
        "section",
        tag("h2", heading, id=identifier),
        tag("p", lead, class_="lead"),
        tag("div", beside, class_="beside"),
        contents(f"Contents of {heading}", [*links, (f"{identifier}-options", "All options")]),
        tag("div", class_="switches shared"),
        *drawn[:1],
        tag("div", facts, id=f"{identifier}-facts"),
        *drawn[1:],
        *(
            join(anchored("h3", title, f"{identifier}-{name}"), content)
            for name, (title, content) in blocks.items()
        ),
        tag("div", options, id=f"{identifier}-options"),
        aria_labelledby=identifier,
        class_="run",
        id=f"{identifier}-section",
    )


def contents(label: str, links: Sequence[tuple[str, str]]) -> Markup:
    """Return links to parts of the page: by identifier, what they are called."""
    items = [tag("li", tag("a", text, href=f"#{identifier}")) for identifier, text in links]
    return tag("nav", tag("ul", *items), aria_label=label, class_="contents")


def result_card(result: str) -> Markup:
    """Return our result in one sentence, or that there is none yet."""
    text = result or "There is no result yet: it takes networks that have come to their end."
    return tag("div", tag("h3", "Our result"), tag("p", text, class_="result"), class_="card")


def _facts(run: RunDirectory, config: dict[str, Any]) -> Markup:
    """Return what was run, when and for how long, and how far it has come."""
    begun, planned = len(run.parts()), _planned(config)
    facts = {"experiment": config["experiment"], "preset": _preset(config)}
    facts["networks"] = f"{begun} of {planned}" if planned else str(begun)
    first, count = config.get("seed"), config.get("seeds", 1)
    if isinstance(first, int) and isinstance(count, int):
        facts["seeds" if count > 1 else "seed"] = _range(range(first, first + max(1, count)))
    facts |= _times(run)
    if run.is_being_written():
        facts["state"] = "running"
    return fact_card("What was run", {name: value for name, value in facts.items() if value})


def _preset(config: dict[str, Any]) -> str:
    """Return the nearest preset, and whether options other than the seeds differ from it."""
    try:
        run = EXPERIMENTS[config["experiment"]].restored(config)
        words = _options(run)
    except (RunError, ValueError):
        return ""
    if not words:
        return ""
    others = set(_differing(run, words[1])) - {"seed", "seeds"}
    return (
        f"{words[1]}, with {len(others)} other option{'s'[: len(others) - 1]}"
        if others
        else words[1]
    )


def _times(run: RunDirectory) -> dict[str, str]:
    """Return when the run began and how long it has taken, if that was recorded."""
    told = read_progress(run.path)
    if not told["begun"]:
        return {}
    try:
        day = datetime.fromtimestamp(told["begun"], UTC)
    except (OverflowError, ValueError, OSError):
        return {}  # a number, but no time
    return {
        "begun": f"{day.day} {day:%B %Y, %H:%M} UTC",
        "duration": f"{duration(told['all_seconds'])}, breaks left out",
    }


def duration(seconds: float) -> str:
    """Return a time as people say it: 45 seconds, 12 minutes, 3.5 hours."""
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


def fact_card(title: str, facts: Mapping[str, str]) -> Markup:
    """Return a card of names and values."""
    pairs = [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items()]
    return tag("div", tag("h3", title), tag("dl", *pairs), class_="card")


def _planned(config: dict[str, Any]) -> int:
    """Return how many networks the run is to have; 0 if its options are of another version."""
    try:
        return len(EXPERIMENTS[config["experiment"]].restored(config).parts())
    except (RunError, ValueError):
        return 0


def paper_card(paper: Paper) -> Markup:
    """Return what the paper says."""
    return tag(
        "div",
        tag("h3", f"The paper's claim ({paper.place})"),
        tag("p", paper.claim),
        tag("details", tag("summary", "What its figure shows"), tag("p", paper.shows)),
        class_="card",
    )


def figure_markup(figures: Iterable[Figure], identifier: str, budget: int) -> Iterator[Markup]:
    """Yield figures; one that needs more than what is left of the budget is left out.

    Args:
        figures: what is drawn.
        identifier: of the section that they are in.
        budget: bytes that they may need.
    """
    for number, figure in enumerate(figures):
        films = [film for panel in figure.panels for film in panel.films]
        drawn = sheets(films, int(budget * FILM_SHARE * 3 / 4))
        shown = _figure(figure, drawn, f"{identifier}-figure{number}")
        if len(shown) > budget or len(drawn) < len(films):
            text = f"{figure.title}: left out, as it is too large for the page."
            yield tag("p", text, " `ewc figure` draws it into a file.")
            continue
        budget -= len(shown)
        yield shown


def _figure(figure: Figure, films: list[Sheet], identifier: str) -> Markup:
    left = iter(films)
    panels = [panel_data(panel, [next(left) for _ in panel.films]) for panel in figure.panels]
    tables = list(number_tables(figure))
    numbers = tag("details", tag("summary", "The values in this figure"), *tables)
    return tag(
        "figure",
        figure_caption(figure, identifier),
        tag("div", class_="switches"),
        tag("div", class_="panels"),
        tag("div", class_="tools"),
        numbers if tables else Markup(""),
        script_data({"name": figure.name, "panels": panels}),
        id=identifier,
        class_="chart",
    )


def _command(config: dict[str, Any]) -> Markup:
    try:
        command = reproducing_command(config)
    except RunError as error:
        return tag("p", f"The options do not fit this version, which cannot repeat it: {error}")
    return command_markup(command)


def command_markup(command: str) -> Markup:
    """Return the command that reproduces what is shown; page.js adds a button that copies it."""
    return tag("div", tag("pre", tag("code", command), tabindex="0"), class_="command")


def option_table(config: Mapping[str, Any]) -> Markup:
    """Return all options with what they mean, and the versions."""
    experiment = EXPERIMENTS[config["experiment"]]
    help_of = {field.name: field.metadata["help"] for field in fields(experiment)}
    rows = [
        [name, value if isinstance(value, str) else json.dumps(value), help_of.get(name, "")]
        for name, value in config.items()
        if name not in ("experiment", "versions")
    ]
    table = table_markup("All options of the run", ["option", "value", "what it is"], rows)
    versions = [[str(name), str(value)] for name, value in (config.get("versions") or {}).items()]
    used = table_markup("Versions", ["what", "version"], versions)
    shown = join(table, used) if versions else table
    return tag("details", tag("summary", "All options and versions"), shown)


def sweep_section(sweep: Sweep, identifier: str, budget: int) -> Markup:
    """Return all there is to say about a sweep.

    Args:
        sweep: the sweep; raises RunError if its files are damaged.
        identifier: of the heading in the page.
        budget: bytes that its figures may need; one that needs more is left out.
    """
    plan = sweep.read()
    sweep.check()
    figures: list[Figure] = []
    blocks: dict[str, tuple[str, Markup]] = {}
    beside = Markup("")
    with fitting_files(sweep.path, "cannot be shown"):
        best = [run for runs in sweep.best_runs(plan).values() for run in runs]
        for run in (*sweep.runs(plan), *best):
            sweep.check_run(run)
        chosen = sweep.chosen_directories(plan)
        begun = [run for runs in chosen.values() for run in runs]
        begun += [run.directory for run in sweep.runs(plan) if run.directory.parts()]
        if begun:
            with drawable(begun[0]) as view:
                beside = paper_card(view.PAPER)
                if isinstance(view, BestView) and any(chosen.values()):
                    beside = join(result_card(view.best_result(chosen)), beside)
                    figures = view.best_figures(chosen)
                    numbers = terminal_tables(view.best_table(chosen))
                    blocks["numbers"] = ("The numbers", join(*numbers))
        blocks["trials"] = ("The trials", join(*_sweep_tables(sweep, plan)))
    blocks["again"] = (AGAIN, command_markup(sweeping_command(plan)))
    return section(
        f"A sweep of {plan.base.name}",
        identifier,
        SUMMARIES[plan.base.name],
        beside=beside,
        figures=figures,
        drawn=list(figure_markup(figures, identifier, budget)),
        facts=_sweep_facts(sweep, plan),
        blocks=blocks,
        options=option_table(plan.base.to_dict()),
    )


def _sweep_facts(sweep: Sweep, plan: Plan) -> Markup:
    facts = {"experiment": plan.base.name}
    facts |= {spec.partition("=")[0]: spec.partition("=")[2] for spec in plan.over}
    facts |= {"trials": str(plan.trials), "seeds of the search": _range(plan.search_seeds)}
    if plan.halving is not None:
        facts["halving"] = f"{plan.halving:g}"
    if plan.best_seeds:
        facts["seeds that report"] = _range(plan.reporting_seeds)
    facts |= _times(RunDirectory(sweep.path))
    running = RunDirectory(sweep.path).is_being_written()
    return fact_card("What was run: this sweep", facts | ({"state": "running"} if running else {}))


def _range(seeds: range) -> str:
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"


def _sweep_tables(sweep: Sweep, plan: Plan) -> Iterator[Markup]:
    """Yield the chosen trials and all trials, best first."""
    if sweep.chosen:
        yield from terminal_tables(best_table(sweep, plan))
    every = list(terminal_tables(trial_table(sweep, plan)))
    where = f"Each trial is a run of its own: ewc report {sweep.path.name}/trials/0000-seed"
    note = tag("p", f"{where}{plan.base.seed} shows the first one.")
    yield tag("details", tag("summary", "All trials, the best first"), *every, note)


def reproducing_command(stored: Mapping[str, Any]) -> str:
    """Return `ewc run NAME` with the preset that is nearest, and the options that differ from it.

    Raises RunError if the config does not fit the experiment.
    """
    config = EXPERIMENTS[stored["experiment"]].restored(stored)
    return shlex.join(["ewc", "run", config.name, *_options(config)])


def sweeping_command(plan: Plan) -> str:
    """Return `ewc sweep NAME` with the options that reproduce a sweep."""
    words = ["ewc", "sweep", plan.base.name, *_options(plan.base), "--over", *plan.over]
    numbers: dict[str, float | None] = {
        "trials": None if plan.grid else plan.trials,
        "seeds": plan.seeds,
        "halving": plan.halving,
        "best_seeds": plan.best_seeds,
    }
    for name, number in numbers.items():
        if number is not None:
            words += [flag(name), f"{number:g}"]
    return shlex.join(words)


def _options(config: Experiment) -> list[str]:
    """Return the nearest preset and the options that differ from it."""
    options = [
        ["--preset", preset, *_changes(config, preset)]
        for preset in config.presets
        if not _cannot_be_given(config, preset)
    ]
    return min(options, key=len, default=[])


def _changes(config: Experiment, preset: str) -> Iterator[str]:
    """Yield the options that turn a preset into the config."""
    for name, value in _differing(config, preset).items():
        if isinstance(value, bool):
            yield flag(name) if value else flag(name).replace("--", "--no-", 1)
            continue
        yield flag(name)
        for item in value if isinstance(value, tuple) else (value,):
            yield str(item)


def _differing(config: Experiment, preset: str) -> dict[str, Any]:
    """Return the options of a config that differ from those of a preset."""
    chosen = type(config)(**config.presets[preset])
    names = [field.name for field in fields(config)]
    return {
        name: getattr(config, name)
        for name in names
        if getattr(config, name) != getattr(chosen, name)
    }


def _cannot_be_given(config: Experiment, preset: str) -> bool:
    """Whether the preset sets an option that the config leaves out: there is no way to say so."""
    return any(value is None for value in _differing(config, preset).values())
