"""The page in a real browser: drawn, usable, readable everywhere, and without any error."""

import csv
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.browser import PHONE, Browser
from support.games import make_games, write_clip
from support.runs import end, make_learning_curves

from ewc_paper.page.report import build_page
from ewc_paper.page.watch import Server
from ewc_paper.runs.directory import RunDirectory

RESULTS = Path(__file__).parents[3] / "docs" / "results"
STORED = (  # one run of each experiment
    *("schematic", "learning-curves-quick", "many-tasks-laptop", "fisher-overlap-laptop"),
    *("strength-laptop", "games-laptop", "perturbation-laptop", "recognition-laptop"),
    "many-tasks-search",  # a sweep
)
LINES = "return document.querySelectorAll('.panel svg g > path').length"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    yield found
    found.driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of the pages of stored runs, and of one with films."""
    place = tmp_path_factory.mktemp("pages")
    runs = {name: RESULTS / name for name in STORED}
    films = make_games(place / "games")
    write_clip(films, "plain-seed0", "Pong", 5, folder="clips/untrained")
    runs["films"] = films.path
    for name, run in runs.items():
        (place / f"{name}.html").write_bytes(build_page([run]))
    return {name: (place / f"{name}.html").as_uri() for name in runs}


def drawn_panels(browser: Browser) -> int:
    """How many panels show something: a line, a dot, a bar or an area, or a picture."""
    return int(
        browser.run(
            """
            const seen = (panel) => [...panel.querySelectorAll('svg path[d], svg rect, svg circle')]
              .some((mark) => mark.getBoundingClientRect().width > 0);
            const painted = (panel) => [...panel.querySelectorAll('canvas')].some((canvas) =>
              canvas.getContext('2d').getImageData(0, 0, 10, 10).data.some((value) => value > 0));
            return [...document.querySelectorAll('.panel')]
              .filter((panel) => seen(panel) || painted(panel)).length;
            """
        )
    )


@pytest.mark.parametrize("name", [*STORED, "films"])
def test_a_page_is_drawn_without_errors_or_serious_findings(
    name: str, browser: Browser, pages: dict[str, str]
) -> None:
    browser.open(pages[name])
    panels = browser.wait(lambda: len(browser.find(".panel")))
    browser.wait(lambda: drawn_panels(browser) == panels)
    assert browser.console() == []
    assert browser.serious_findings() == []


def test_a_serious_finding_would_be_found(browser: Browser, tmp_path: Path) -> None:
    bad = "<main><input><p style='color:#ddd'>pale words</p>"
    (tmp_path / "bad.html").write_text(f"<!doctype html><html lang=en><title>x</title>{bad}")
    browser.open((tmp_path / "bad.html").as_uri())
    names = [found.partition(":")[0] for found in browser.serious_findings()]
    assert {"label", "color-contrast"} <= set(names)


@pytest.mark.parametrize("name", [*STORED, "films"])
def test_a_phone_shows_it_without_sideways_scrolling(
    name: str, browser: Browser, pages: dict[str, str]
) -> None:
    browser.open(pages[name], width=PHONE)
    for details in browser.find("details"):
        browser.run("arguments[0].open = true", details)
    assert browser.run("return document.documentElement.scrollWidth") == PHONE
    wide = browser.run(
        """
        return [...document.querySelectorAll('.panel, h1, h2, h3, p, label, pre')]
          .filter((one) => one.getBoundingClientRect().right > innerWidth)
          .map((one) => one.outerHTML.slice(0, 100))
        """
    )
    assert wide == []


@pytest.mark.parametrize("name", ["many-tasks-laptop", "games-laptop", "films"])
def test_in_the_dark_it_is_dark_and_has_enough_contrast(
    name: str, browser: Browser, pages: dict[str, str]
) -> None:
    seen = {}
    for dark in (False, True):
        browser.open(pages[name], dark=dark)
        seen[dark] = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert seen == {False: "rgb(255, 255, 255)", True: "rgb(22, 24, 29)"}
    assert browser.serious_findings() == []


def test_colors_of_lines_follow_the_scheme(browser: Browser, pages: dict[str, str]) -> None:
    line = "return getComputedStyle(document.querySelector('.swatch line')).stroke"
    browser.open(pages["many-tasks-laptop"])
    light = browser.run(line)
    assert light == "rgb(200, 40, 45)"
    browser.open(pages["many-tasks-laptop"], dark=True)
    assert browser.run(line) != light


def test_on_paper_it_is_light_and_complete(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["films"], dark=True, printed=True)
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)"
    )
    assert browser.run("return getComputedStyle(document.querySelector('.player')).display") == (
        "none"
    )
    printed = browser.driver.execute_cdp_cmd("Page.printToPDF", {})["data"]
    assert len(printed) > 20_000


def switch(browser: Browser, label: str) -> Any:
    """The first switch with a label."""
    for one in browser.find("fieldset label"):
        if one.text.strip() == label:
            return one.find_element("css selector", "input")
    raise AssertionError(f"there is no switch {label}")


def test_methods_and_seeds_are_switched_on_and_off(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["many-tasks-laptop"])
    before = browser.run(LINES)
    switch(browser, "SGD").click()
    without = browser.run(LINES)
    assert without < before
    switch(browser, "seed 11").click()
    with_seed = browser.run(LINES)
    assert with_seed > without
    switch(browser, "mean ± deviation").click()
    assert browser.run(LINES) < with_seed
    for label in ("SGD", "seed 11", "mean ± deviation"):
        switch(browser, label).click()
    assert browser.run(LINES) == before
    assert browser.console() == []


def test_tasks_are_switched_with_the_keyboard(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["learning-curves-quick"])
    assert len(browser.find(".panel svg")) == 3
    box = switch(browser, "task B")
    browser.run("arguments[0].focus()", box)
    box.send_keys(" ")
    titles = [one.text for one in browser.find(".panel h4")]
    assert titles == ["task A", "task C"]
    assert browser.run("return document.activeElement.dataset.key").endswith("panel task B")


def test_a_value_is_shown_under_the_pointer(browser: Browser, pages: dict[str, str]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    browser.open(pages["many-tasks-laptop"])
    dot = browser.run("return document.querySelectorAll('.panel svg circle')[5]")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", dot)
    ActionChains(browser.driver).move_to_element(dot).perform()
    said = "return document.querySelector('.panel svg [aria-label=tip]')?.textContent"
    shown = browser.wait(lambda: browser.run(said)).replace("\u200b", " ")
    assert shown.strip() == "EWC 97.61 ± 0.046 number of tasks: 6"


def test_the_sizes_of_the_figures_follow_the_window(
    browser: Browser, pages: dict[str, str]
) -> None:
    browser.open(pages["many-tasks-laptop"])
    width = "return document.querySelector('.panel svg').getAttribute('width')"
    assert float(browser.run(width)) > 900
    screen = {"width": 500, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.wait(lambda: float(browser.run(width)) < 500)


def test_films_play_and_pause(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["films"])
    button, slider = browser.find(".player button")[0], browser.find(".player input")[0]
    assert (button.text, slider.get_attribute("value")) == ("Play", "0")  # nothing moves by itself
    button.click()
    browser.wait(lambda: slider.get_attribute("value") != "0")
    button.click()
    assert (button.text, button.get_attribute("aria-label")) == ("Play", "play of Pong")
    browser.run("arguments[0].value = 6; arguments[0].dispatchEvent(new Event('input'))", slider)
    shown = browser.run(
        """
        return [...document.querySelectorAll('canvas')].map((canvas) => {
          const data = canvas.getContext('2d').getImageData(0, 0, 10, 10).data;
          return [...Array(10).keys()].find((row) => data[40 * row] > 200);
        })
        """
    )
    assert sorted(shown) == [3, 4, 6]  # a shorter film stays at its end
    assert texts(browser, ".moment") == ["before any training", "at the end, after all games"]


def test_one_legend_switches_what_several_figures_have(
    browser: Browser, pages: dict[str, str]
) -> None:
    browser.open(pages["films"])
    count = """
        return [...document.querySelectorAll('figure')]
          .map((one) => one.querySelectorAll('path, canvas').length)
        """
    before = browser.run(count)
    labels = texts(browser, "fieldset.key label")
    assert labels.count("plain training") == 1
    switch(browser, "plain training").click()
    without = browser.run(count)
    changed = [one != other for one, other in zip(before, without, strict=True)]
    # all but the schedule and the contexts, which do not show arms
    assert changed == [True, False, True, True, False, True]
    switch(browser, "plain training").click()
    assert browser.run(count) == before
    # what only one figure shows is switched there
    (schedule,) = [one for one in browser.find("figure") if "Which game is trained" in one.text]
    assert "being trained" in schedule.text
    assert browser.console() == []


def test_two_seeds_are_lines_and_three_a_band(browser: Browser, pages: dict[str, str]) -> None:
    areas = "return document.querySelectorAll('figure svg [fill-opacity=\"0.16\"]').length"
    browser.open(pages["films"])  # two seeds
    assert browser.run(areas) == 0
    assert [switch(browser, f"seed {seed}").is_selected() for seed in (0, 1)] == [True, True]
    lines = browser.run(LINES)
    switch(browser, "seed 0").click()
    assert browser.run(LINES) < lines
    browser.open(pages["many-tasks-laptop"])  # three
    assert browser.run(areas) > 0
    assert not switch(browser, "seed 10").is_selected()


def test_figures_are_saved_as_svg_and_csv(
    browser: Browser, pages: dict[str, str], tmp_path: Path
) -> None:
    allowed = {"behavior": "allow", "downloadPath": str(tmp_path)}
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", allowed)
    browser.open(pages["many-tasks-laptop"], dark=True)
    for button in browser.find(".tools button"):
        button.click()
    files = [tmp_path / "many-tasks.svg", tmp_path / "many-tasks.csv"]
    browser.wait(lambda: all(file.is_file() for file in files))
    picture = ElementTree.parse(files[0]).getroot()
    said = [text.strip() for text in picture.itertext()]
    assert {"EWC", "SGD + dropout", "number of tasks"} <= set(said)
    assert "Average test accuracy over all tasks so far, as tasks are added" in said
    drawn = files[0].read_text()
    assert "#c8282d" in drawn  # in light colors
    assert "var(" not in drawn
    rows = list(csv.reader(files[1].open(newline="")))
    assert rows[0] == ["kind", "panel", "label", "seed", "x", "y", "x to"]
    (last,) = [row for row in rows if row[2:5] == ["EWC", "seed 10", "10"]]
    assert float(last[5]) == pytest.approx(97.26, abs=0.005)
    assert browser.console() == []


def test_a_text_in_a_table_is_no_formula(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["schematic"])
    made = browser.run(
        """
        const level = { label: '=1+1,"x"', upright: false, value: 2 };
        const none = { series: [], dots: [], boxes: [] };
        const panel = { title: '', ...none, levels: [level], y: { names: [] } };
        return ewc.csv({ panels: [panel] });
        """
    )
    assert list(csv.reader(io.StringIO(made)))[1] == ["level", "", '\'=1+1,"x"', "", "", "2", ""]


def test_the_command_is_copied_or_selected(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["many-tasks-laptop"])
    button = browser.find(".command button")[0]
    browser.run("arguments[0].scrollIntoView({block: 'center'})", button)
    button.click()
    browser.wait(lambda: button.text in ("Copied", "Selected"))
    if button.text == "Selected":
        assert browser.run("return String(getSelection())") == (
            "ewc run many-tasks --preset laptop --seed 10"
        )


def test_contents_and_anchors_lead_to_their_places(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["games-laptop"])
    for link in (browser.find(".contents a")[-3], browser.find("a.anchor")[-1]):
        browser.run("arguments[0].click()", link)
        place = link.get_attribute("href").partition("#")[2]
        top = browser.run(
            "return document.getElementById(arguments[0]).getBoundingClientRect().top", place
        )
        assert 0 <= top < 900


def test_a_run_named_like_a_script_is_shown_and_not_run(browser: Browser, tmp_path: Path) -> None:
    name = "<script>window.hurt=1<"
    make_learning_curves(tmp_path / name)
    (tmp_path / "page.html").write_bytes(build_page([tmp_path / name]))
    browser.open((tmp_path / "page.html").as_uri())
    assert browser.find("h1")[0].text == name
    assert browser.run("return window.hurt") is None
    assert browser.console() == []


def test_the_policy_runs_nothing_that_is_put_into_the_page(
    browser: Browser, pages: dict[str, str]
) -> None:
    browser.open(pages["many-tasks-laptop"])
    browser.run(
        """
        const image = '<img src="data:," onerror="window.hurt = 1">';
        document.body.insertAdjacentHTML('beforeend', image);
        const script = document.createElement('script');
        script.textContent = 'window.hurt = 2';
        document.body.append(script);
        """
    )
    browser.wait(lambda: any("Content Security Policy" in one for one in browser.console()))
    assert browser.run("return window.hurt") is None


@contextmanager
def serving(run: RunDirectory) -> Iterator[Server]:
    with Server(run.path, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def texts(browser: Browser, selector: str) -> list[str]:
    program = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
    return [text.strip() for text in browser.run(program, selector)]


def test_a_watched_run_is_followed_and_choices_are_kept(browser: Browser, tmp_path: Path) -> None:
    run = make_learning_curves(tmp_path / "run")
    with serving(run) as server:
        browser.open(f"http://127.0.0.1:{server.server_address[1]}/")
        assert texts(browser, "h1") == ["run"], browser.driver.page_source[:500]
        browser.wait(lambda: "This page follows the run." in texts(browser, ".live"))
        browser.find("details summary")[0].click()
        switch(browser, "task B").click()
        grow(run)
        browser.wait(lambda: "L2" in texts(browser, "fieldset label"))
        assert texts(browser, ".panel h4") == ["task A"]
        assert browser.run("return document.querySelector('details').open") is True
        assert browser.run("return document.activeElement.dataset.key").endswith("panel task B")
    browser.wait(lambda: "server has ended" in "".join(texts(browser, ".live")))
    errors = [one for one in browser.console() if "ERR_CONNECTION_REFUSED" not in one]
    assert errors == []


def grow(run: RunDirectory) -> None:
    """Another network has begun."""
    run.part("l2").start({})
    run.part("l2").append(end(0, 0.9))
