"""HTML: escaping, tables, and the document that may load nothing."""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import hypothesis.strategies as st
import pytest
from hypothesis import given
from rich.table import Table

from ewc_paper.page.markup import (
    LIMIT,
    Markup,
    document,
    escape,
    join,
    script_data,
    table_markup,
    tag,
    terminal_tables,
)


class Reader(HTMLParser):
    """Collects the elements, attributes and texts that a browser would see."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


texts = st.text(st.characters(exclude_categories=("Cs", "Cc"))) | st.sampled_from(
    ["<script>alert(1)</script>", '" onload="x', "</p>", "&lt;", "<!--", "'><img src=x>"]
)


@given(texts, texts)
def test_any_text_comes_back_as_it_was(text: str, value: str) -> None:
    page = Reader(tag("p", text, title=value))
    assert page.elements == [("p", {"title": value})]
    assert page.text == text


def test_markup_is_put_together_and_not_escaped_twice() -> None:
    inner = tag("b", "a & b")
    assert tag("p", inner, " <c>") == "<p><b>a &amp; b</b> &lt;c&gt;</p>"
    assert escape(inner) is inner
    assert join("<", Markup("<br>")) == "&lt;<br>"


def test_attributes_and_elements_without_an_end() -> None:
    assert tag("input", class_="x", data_key="y", checked=True, disabled=False, id=None) == (
        '<input class="x" data-key="y" checked>'
    )


@given(texts)
def test_data_cannot_end_its_script(text: str) -> None:
    element = script_data({"name": text})
    assert Reader(element).elements == [("script", {"type": "application/json"})]
    content = element.removeprefix('<script type="application/json">').removesuffix("</script>")
    assert not set(content) & set("<>&\u2028\u2029")
    assert json.loads(content) == {"name": text}


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (math.nan, None),
        (math.inf, None),
        (0.1, 0.1),
        (1 / 3, 0.33333333),
        ((1, "a"), [1, "a"]),
        ({"x": [math.nan]}, {"x": [None]}),
        (12_345_678_901, 12_345_678_901),
    ],
)
def test_numbers_are_json(value: Any, stored: Any) -> None:
    assert json.loads(Reader(script_data(value)).text) == stored


def test_headings_are_marked_and_cells_are_escaped() -> None:
    found = ElementTree.fromstring(table_markup("title", ["", "a"], [["<x>", "1"], ["", "2"]]))
    assert found.get("tabindex") == "0"
    assert found.get("aria-label") == found.findtext("table/caption/span") == "title"
    assert [one.get("scope") for one in found.iter("th")] == ["col", "col", "row"]
    rows = [[cell.text or "" for cell in row] for row in found.iter("tr")]
    assert rows == [["", "a"], ["<x>", "1"], ["", "2"]]


def test_a_grid_of_tables_is_one_table_after_another() -> None:
    grid, first, second = Table.grid(), Table("a", title="first"), Table("b", title="second")
    first.add_row("1")
    second.add_row("2")
    grid.add_row(first)
    grid.add_row(second)
    titles = [
        ElementTree.fromstring(one).findtext("table/caption/span") for one in terminal_tables(grid)
    ]
    assert titles == ["first", "second"]


def test_a_table_without_rows_is_left_out() -> None:
    assert list(terminal_tables(Table("a"))) == []
    assert list(terminal_tables(Table.grid())) == []


PAGE = document("<title>", tag("p", "content")).decode()


def source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy(page: str) -> dict[str, str]:
    (content,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    rules = content.replace("&#x27;", "'").split("; ")
    return dict(rule.split(" ", 1) for rule in rules)


def test_exactly_the_scripts_and_the_style_of_the_page_are_allowed() -> None:
    scripts = re.findall(r"<script>(.*?)</script>", PAGE, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", PAGE, re.DOTALL)
    assert len(scripts) == 5
    assert policy(PAGE)["script-src"].split() == [source(script) for script in scripts]
    assert policy(PAGE)["style-src"] == source(style)


@pytest.mark.parametrize(("live", "connect"), [(False, "'none'"), (True, "'self'")])
def test_only_a_live_page_asks_its_server(live: bool, connect: str) -> None:
    page = document("title", tag("p"), live=live).decode()
    assert policy(page)["connect-src"] == connect
    assert ("data-live" in page.partition("<head>")[0]) == live
    assert policy(page)["default-src"] == "'none'"
    assert "unsafe" not in str(policy(page))


def test_nothing_is_loaded_from_elsewhere() -> None:
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", PAGE)
    assert not re.findall(r"@import|url\(", re.findall(r"<style>(.*?)</style>", PAGE, re.DOTALL)[0])


def test_the_title_is_escaped_and_the_page_is_small() -> None:
    assert "<title>&lt;title&gt;</title>" in PAGE
    assert len(PAGE) < LIMIT / 8


def test_the_licenses_of_the_libraries_are_with_them() -> None:
    from importlib.resources import files

    vendor = files("ewc_paper.page") / "assets" / "vendor"
    for name in ("d3", "plot"):
        assert "Permission to use, copy" in (vendor / f"{name}.LICENSE").read_text()
