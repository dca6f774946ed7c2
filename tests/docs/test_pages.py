"""What the pages say about the code is so: links, paths, public names and quoted warnings.

`make docs` checks the links between pages and to headings too (`mkdocs build --strict`); here they
are checked without it, and those of the pages outside docs/ as well.
"""

import ast
import importlib
import re
from pathlib import Path

import pytest

import ewc
from ewc_paper.cli import build_parser
from ewc_paper.cli.parser import DEFAULT_PRESET, given_options
from ewc_paper.experiments import EXPERIMENTS, SUMMARIES, many_tasks, module_name
from ewc_paper.experiments.experiment import Experiment
from ewc_paper.experiments.view import view_of
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.sweeps.sweep import Sweep

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), ROOT / "paper/README.md", *sorted(DOCS.rglob("*.md"))]
# Where the paths of a page may begin, so that games.md can say games/replay.py.
STARTS = (ROOT, ROOT / "paper/src", ROOT / "paper/src/ewc_paper", ROOT / "src/ewc")


def place(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose(page)):
        if target.endswith("/report.html"):  # made of the stored run, when the site is built
            target = target.removesuffix("/report.html")
        if "://" not in target:
            assert (page.parent / target).exists(), f"{place(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_a_page_says_what_it_is_for_and_installs_in_one_way(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # it also speaks of what was
    text = page.read_text()
    assert not re.search(r"(?m)^You get", text)
    # `ewc` is not on PyPI, so that from a clone is the one way that works
    assert "pip install 'ewc" not in text
    assert "pip install ewc" not in text


def test_the_first_screen_has_the_same_picture_in_the_readme_and_on_the_site() -> None:
    pictures = []
    for page, start in ((ROOT / "README.md", "docs/"), (DOCS / "index.md", "")):
        opening = page.read_text().partition("```")[0]
        (marked,) = re.findall(r"<!-- The headline figure.*?-->\n!\[[^]]+\]\(([^)]+)\)", opening)
        assert marked.endswith(".svg")
        pictures.append(marked.removeprefix(start))
    assert pictures[0] == pictures[1]


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "index.md"], ids=place)
def test_the_numbers_of_the_first_screen_are_those_of_the_run_in_its_picture(page: Path) -> None:
    run = RunDirectory(DOCS / "results" / "many-tasks-hundred")
    numbers = set(re.findall(r"[0-9.]+ %", view_of(run).result(run)))
    assert len(numbers) == 5
    assert numbers <= set(re.findall(r"[0-9.]+ %", page.read_text().partition("```")[0]))


GALLERY = (DOCS / "gallery.md").read_text()


def test_the_gallery_has_every_experiment_with_its_command() -> None:
    for name in SUMMARIES:
        assert re.search(rf"(?m)^ewc run {name}\b", GALLERY), name
    for entry in GALLERY.split("\n## ")[1:]:
        (time,) = re.findall(r"(?m)^(.*)\. \[What was done", entry)
        assert re.search("[Ss]econds|[Mm]inutes|hour", time)


def planned(command: str) -> Experiment:
    """What `ewc run NAME ...` would do."""
    words = command.replace("\\\n", " ").split()[1:]
    given = build_parser(words).parse_args(words)
    changes = given_options(given, given.experiment)
    found: Experiment = given.experiment.preset(given.preset or DEFAULT_PRESET, **changes)
    return found


COMMAND = r"```\n(ewc run (?:\\\n|[^`\n])*)\n```"  # one alone
REPEATED = [  # a command and the run whose numbers stand beside it
    *(
        (run, command)
        for run, command in re.findall(r"results/([\w-]+)/report.html[^#]*?" + COMMAND, GALLERY)
    ),
    *(
        (run, command)
        for page in sorted(DOCS.glob("experiments/*.md"))
        for command, run in re.findall(
            COMMAND + r"[^`#]*?[Ss]tored in\s+`docs/results/([\w-]+)`", page.read_text()
        )
    ),
]


@pytest.mark.parametrize(("run", "command"), REPEATED)
def test_the_command_beside_a_result_repeats_its_run(run: str, command: str) -> None:
    stored = RunDirectory(DOCS / "results" / run).config()
    assert planned(command) == EXPERIMENTS[stored["experiment"]].restored(stored)


@pytest.mark.parametrize("run", sorted(set(re.findall(r"results/([\w-]+)/report.html", GALLERY))))
def test_the_sentence_in_the_gallery_is_the_result_of_its_run(run: str) -> None:
    """It is computed from the stored rows, as on the page of the run."""
    directory = DOCS / "results" / run
    if (directory / "sweep.json").exists():
        sweep = Sweep(directory)
        result = many_tasks.best_result(sweep.chosen_directories(sweep.read()))
    else:
        result = view_of(RunDirectory(directory)).result(RunDirectory(directory))
    assert result in " ".join(GALLERY.split())


@pytest.mark.parametrize("experiment", SUMMARIES)
def test_a_page_opens_with_the_claim_of_the_paper_and_our_result(experiment: str) -> None:
    opening = (DOCS / "experiments" / f"{experiment}.md").read_text().partition("```")[0]
    assert opening.index("**The paper's claim") < opening.index("**Our result")
    said = " ".join(opening.partition("**Our result")[2].split())
    (first, *_) = re.findall(rf"results/({experiment}[\w-]*)/report.html", GALLERY)
    if experiment not in ("games", "recognition"):  # whose pages speak of several runs
        run = RunDirectory(DOCS / "results" / first)
        assert view_of(run).result(run) in said


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_paths_in_the_text_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # it also speaks of what is gone
    for path in re.findall(r"`([\w.-]+/[\w./-]*)`", prose(page)):
        made = path.split("/")[0] in (".venv", "runs", "site", "minatar", "minibatch")
        assert made or any((start / path).exists() for start in STARTS), (
            f"{place(page)} speaks of {path}"
        )


@pytest.mark.parametrize("name", ewc.__all__)
def test_every_public_name_has_a_reference_and_an_example(name: str) -> None:
    reference = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    assert f"::: ewc.{name}\n" in reference
    assert f"#ewc.{name})" in (DOCS / "reference/index.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```$", _all_pages(), re.MULTILINE | re.DOTALL)
    assert any(re.search(rf"\bewc\.{name}\b", code) for code in examples)


def _all_pages() -> str:
    return "\n".join(page.read_text() for page in DOCS.rglob("*.md"))


def test_the_warnings_quoted_are_those_of_the_library() -> None:
    said = " ".join(
        str(node.value)
        for file in (ROOT / "src/ewc").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    page = (DOCS / "how-to/warnings.md").read_text()
    quotes = re.findall(r"(?:^> .+\n)+", page, re.MULTILINE)
    assert len(quotes) >= 9
    for quote in quotes:
        # Values that vary are set in italics; the text around them is quoted word for word.
        words = re.sub(r"\s+", " ", quote.replace("\n> ", " ").removeprefix("> "))
        for piece in re.split(r"'?\*[^*]+\*'?", words):
            assert piece.strip(" %") in re.sub(r"\s+", " ", said), f"no warning says: {piece}"


@pytest.mark.parametrize("experiment", SUMMARIES)
def test_the_claim_of_the_paper_is_the_same_on_the_page_of_a_run(experiment: str) -> None:
    figure = importlib.import_module(module_name(experiment, "figure"))
    page = " ".join((DOCS / "experiments" / f"{experiment}.md").read_text().split())
    assert figure.PAPER.claim in page
