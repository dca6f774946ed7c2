"""Every example in the documentation runs: the blocks of one page in order, in one namespace.

A block that must not run has a line `<!-- not run: the reason -->` before it. MNIST is cut down to
a few images, so that each page takes seconds.
"""

import re
import warnings
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import ewc_paper.mnist.data

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- not run: (.+) -->\n)?^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL
)

# What these say about their own settings, such as pinned memory without a GPU, is no error of ours.
TRAINERS = ("lightning", r"torch\.utils\.data")


class Block(NamedTuple):
    """The code of one block, the line it starts at, and why it is not run, if it is not."""

    code: str
    line: int
    not_run: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(match[2], text[: match.start(2)].count("\n"), match[1])
        for match in BLOCK.finditer(text)
    ]


WITH_EXAMPLES = [page for page in PAGES if blocks(page)]


def place(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=place)
def test_the_examples_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = partial(ewc_paper.mnist.data.load, train_samples=1000, test_samples=500)
    monkeypatch.setattr(ewc_paper.mnist.data, "load", small)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("error")
        for module in TRAINERS:
            warnings.filterwarnings("ignore", module=module)
        for block in blocks(page):
            if block.not_run is None:
                # As many empty lines before it as the page has: a traceback names the page's line.
                exec(compile("\n" * block.line + block.code, page, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=place)
def test_code_that_is_not_run_says_so(page: Path) -> None:
    found = re.findall(r"^ *```+ *(?:py|python)\b.*$", page.read_text(), re.MULTILINE)
    assert len(found) == len(blocks(page)), "indented or differently marked blocks are not run"
