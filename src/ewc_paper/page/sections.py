"""The section of one run: what was run, the paper beside it, figures, tables, config, command."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from ewc_paper.errors import RunError
from ewc_paper.experiments import EXPERIMENTS, SUMMARIES
from ewc_paper.experiments.check import drawable
from ewc_paper.experiments.view import Paper
from ewc_paper.figures.panel import Figure
from ewc_paper.page.charts import figure_caption, number_tables, panel_data
from ewc_paper.page.command_line import reproducing_command
from ewc_paper.page.films import Sheet, sheets
from ewc_paper.page.markup import Markup, join, script_data, tag
from ewc_paper.page.tables import table_markup, terminal_tables
from ewc_paper.runs.directory import RunDirectory

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
        config = run.config()
        return tag(
            "section",
            tag("h2", heading, id=identifier),
            tag("p", SUMMARIES[config["experiment"]], class_="lead"),
            tag("div", _facts(run, config), paper_card(view.PAPER), class_="beside"),
            *figure_markup(view.figures(run), identifier, budget),
            tag("h3", "The numbers"),
            *(list(terminal_tables(view.table(run))) or [tag("p", "No measurement yet.")]),
            _command(config),
            option_table(config),
            aria_labelledby=identifier,
            class_="run",
        )


def _facts(run: RunDirectory, config: dict[str, Any]) -> Markup:
    """Return what was run, and how far it has come."""
    begun, planned = len(run.parts()), _planned(config)
    facts = {
        "experiment": config["experiment"],
        "networks": f"{begun} of {planned}" if planned else str(begun),
        "state": "running" if run.is_being_written() else "not running",
    }
    facts |= {"seed": str(config["seed"])} if "seed" in config else {}
    facts |= {"seeds": str(config["seeds"])} if "seeds" in config else {}
    facts |= {str(name): str(value) for name, value in (config.get("versions") or {}).items()}
    return fact_card("This run", facts)


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
        tag("h3", f"The paper ({paper.place})"),
        tag("p", tag("b", "Its claim. "), paper.claim),
        tag("p", tag("b", "Its figure. "), paper.shows),
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
        found = sheets(films, int(budget * FILM_SHARE * 3 / 4))
        shown = _figure(figure, found, f"{identifier}-figure{number}")
        if len(shown) > budget or len(found) < len(films):
            text = f"{figure.title}: left out, as it is too large for the page."
            yield tag("p", text, " `ewc figure` draws it into a file.")
            continue
        budget -= len(shown)
        yield shown


def _figure(figure: Figure, films: list[Sheet], identifier: str) -> Markup:
    left = iter(films)
    panels = [panel_data(one, [next(left) for _ in one.films]) for one in figure.panels]
    tables = list(number_tables(figure))
    numbers = tag("details", tag("summary", "The values in this figure"), *tables)
    return tag(
        "figure",
        figure_caption(figure),
        tag("div", class_="switches"),
        tag("div", class_="panels"),
        numbers if tables else Markup(""),
        script_data({"panels": panels}),
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
    """Return the command that reproduces what is shown."""
    return join(tag("h3", "Run it again"), tag("pre", tag("code", command), tabindex="0"))


def option_table(config: Mapping[str, Any]) -> Markup:
    """Return all options with what they mean."""
    experiment = EXPERIMENTS[config["experiment"]]
    help_of = {one.name: one.metadata["help"] for one in fields(experiment)}
    rows = [
        [name, value if isinstance(value, str) else json.dumps(value), help_of.get(name, "")]
        for name, value in config.items()
        if name not in ("experiment", "versions")
    ]
    table = table_markup("All options of the run", ["option", "value", "what it is"], rows)
    return tag("details", tag("summary", "All options"), table)
