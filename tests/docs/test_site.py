"""The site in a real browser: its first screen, its colors, phones, and no errors.

It needs the packages of the extra `docs`, which are not those of the tests: without them, nothing
is tested here.
"""

import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.browser import PHONE, Browser

pytest.importorskip("mkdocs", reason="needs the extra docs")
pytest.importorskip("mkdocstrings", reason="needs the extra docs")

ROOT = Path(__file__).parents[2]
PAGES = (
    *("index", "gallery", "experiments/games", "experiments/many-tasks", "how-to/transformers"),
    *("architecture", "reference/memory"),
    *("results/games-quick/report", "results/games-quick/clips"),
)
WIDE = 1280


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are not of interest."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the site, as `make docs` builds it."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    place = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(place), strict=True))
    handler = partial(Quiet, directory=str(place))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.driver.quit()


def look(browser: Browser, address: str, width: int, dark: bool) -> None:
    """Open a page as who comes for the first time; the theme remembers what it was."""
    browser.open(address, width=width, dark=dark)
    browser.run("localStorage.clear()")
    browser.console()
    browser.open(address, width=width, dark=dark)
    browser.wait(lambda: browser.run("return document.readyState") == "complete")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, PHONE])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_no_errors_no_serious_findings_and_does_not_scroll_sideways(
    page: str, width: int, dark: bool, browser: Browser, site: str
) -> None:
    look(browser, f"{site}/{page}.html", width, dark)
    assert browser.console() == []
    assert browser.serious_findings() == []
    # Not `innerWidth`, which on a phone grows with what does not fit.
    assert browser.run("return document.documentElement.scrollWidth") <= width


WITH_CODE = [
    file.relative_to(ROOT / "docs").with_suffix("").as_posix().replace("README", "index")
    for file in sorted((ROOT / "docs").rglob("*.md"))
    if "```" in file.read_text()
]


@pytest.mark.parametrize("page", [*WITH_CODE, "reference/memory"])
def test_lines_of_code_fit(page: str, browser: Browser, site: str) -> None:
    look(browser, f"{site}/{page}.html", WIDE, False)
    long = browser.run(
        """
        return [...document.querySelectorAll('pre > code')]
          .filter((code) => code.scrollWidth > code.clientWidth).map((code) => code.innerText);
        """
    )
    assert long == []


def test_numbers_are_not_broken_and_wide_figures_not_squeezed(browser: Browser, site: str) -> None:
    look(browser, f"{site}/experiments/many-tasks.html", PHONE, False)
    cells = [cell.text for cell in browser.find("td") if "±" in cell.text]
    assert cells
    assert not any("\n" in cell for cell in cells)
    assert "97.2 %" not in browser.run("return document.body.textContent")  # but with a hard space
    look(browser, f"{site}/gallery.html", WIDE, False)
    widths = browser.run(
        """
        return [...document.querySelectorAll('img.wide')]
          .filter((one) => one.getClientRects().length)
          .map((one) => one.getBoundingClientRect().width);
        """
    )
    assert len(widths) >= 5
    assert min(widths) > 700


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_first_screen_shows_a_result_in_the_colors_of_the_page(
    dark: bool, browser: Browser, site: str
) -> None:
    look(browser, f"{site}/index.html", WIDE, dark)
    shown = browser.run(
        """
        return [...document.querySelectorAll('article img')]
          .filter((one) => one.getClientRects().length)
          .map((one) => [one.src, one.getBoundingClientRect().bottom, one.naturalWidth]);
        """
    )
    address, bottom, width = shown[0]
    assert address.endswith("-dark.svg#only-dark" if dark else ".svg#only-light")
    assert bottom < 900
    assert width > 0
    assert "90.1" in browser.find("article")[0].text
    assert "ewc 0." in browser.find(".md-header")[0].text  # the version
