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
from ewc_paper.experiments import SUMMARIES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), ROOT / "src/ewc_paper/README.md", *sorted(DOCS.rglob("*.md"))]
# Where the paths of a page may begin, so that games.md can say games/replay.py.
STARTS = (ROOT, ROOT / "src/ewc_paper", ROOT / "src/ewc")


def place(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose(page)):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{place(page)} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_paths_in_the_text_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":
        return  # it also speaks of what is gone
    for path in re.findall(r"`([\w.-]+/[\w./-]*)`", prose(page)):
        made = path.split("/")[0] in ("runs", "site", "minatar", "minibatch")
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
    figure = importlib.import_module(f"ewc_paper.experiments.{experiment.replace('-', '_')}.figure")
    page = " ".join((DOCS / "experiments" / f"{experiment}.md").read_text().split())
    assert figure.PAPER.claim in page
