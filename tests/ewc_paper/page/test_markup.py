"""A text never becomes markup: it is escaped in elements, in attributes and in scripts."""

import json
import math
from html.parser import HTMLParser
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ewc_paper.page.markup import Markup, escape, join, script_data, tag


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
