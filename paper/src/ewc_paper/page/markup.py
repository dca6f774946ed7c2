"""HTML that is escaped by construction, up to the whole document.

Texts in a run directory may come from anybody. A text becomes markup only through `tag`, and what
is not `Markup` is escaped, so a run named `<script>` is shown and not run. The document has
everything that it needs in it, and nothing else may be loaded or run.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from rich.table import Table

VOID = {"br", "col", "input", "link", "meta"}  # elements without an end tag


class Markup(str):
    """HTML that is already escaped."""


def tag(name: str, /, *children: str, **attributes: str | bool | None) -> Markup:
    """Return an element.

    Args:
        name: of the element.
        children: markup, or strings, which are escaped.
        attributes: `class_` stands for `class`, and `data_x` for `data-x`. True is an attribute
            without a value; None and False leave it out.
    """
    shown = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    inside = "" if name in VOID else f"{join(*children)}</{name}>"
    return Markup(f"<{name}{shown}>{inside}")


def escape(text: str | bool) -> Markup:
    """Return a string as markup that shows it; markup is returned as it is."""
    return text if isinstance(text, Markup) else Markup(html.escape(str(text), quote=True))


def join(*children: str) -> Markup:
    """Return markup and strings one after another."""
    return Markup("".join(escape(child) for child in children))


def anchored(level: str, text: str, identifier: str) -> Markup:
    """Return a heading with a link to itself."""
    return tag(level, text, " ", anchor(text, identifier), id=identifier)


def anchor(text: str, identifier: str) -> Markup:
    """Return a link to a place in the page, to be copied."""
    label = f"Link to: {text}"
    return tag("a", "#", href=f"#{identifier}", class_="anchor", aria_label=label)


def script_data(value: Any) -> Markup:
    """Return a script element that holds data and runs nothing.

    Nothing in a string can end the element: `<`, `>` and `&` are written as JSON escapes.
    """
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json">{text}</script>')


def _finite(value: Any) -> Any:
    """Return the value with null in place of NaN and infinity, and floats of 8 digits."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else None
    return value


def table_markup(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    """Return a table; the first cell of a row is its heading.

    A table that is wider than the page is scrolled by itself, also with the keyboard.
    """
    columns = tag("tr", *(tag("th", name, scope="col") for name in head))
    body = [
        tag("tr", *(_cell(number, cell) for number, cell in enumerate(row, start=0)))
        for row in rows
    ]
    caption = tag("caption", tag("span", title))
    table = tag("table", caption, tag("thead", columns), tag("tbody", *body))
    return tag("div", table, class_="scroll", role="region", aria_label=title, tabindex="0")


def _cell(number: int, text: str) -> Markup:
    if number == 0 and text:
        return tag("th", text, scope="row")
    return tag("td", text)


def terminal_tables(table: Table) -> Iterator[Markup]:
    """Yield a table of the terminal, or the tables that a grid consists of."""
    inner = [cell for column in table.columns for cell in column.cells if isinstance(cell, Table)]
    for nested in inner:
        yield from terminal_tables(nested)
    if not inner and table.row_count:
        head = [str(column.header) for column in table.columns]
        rows = zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True)
        yield table_markup(str(table.title or ""), head, list(rows))
        if table.caption:
            yield _legend(str(table.caption))


def _legend(caption: str) -> Markup:
    """Return the lines `name: meaning` below a table of the terminal as a list."""
    pairs = [line.partition(": ") for line in caption.splitlines()]
    entries = [tag("div", tag("dt", name), tag("dd", meaning)) for name, _, meaning in pairs]
    return tag("dl", *entries, class_="meanings")


SCRIPTS = (
    *("vendor/d3-7.9.2.min.js", "vendor/plot-0.6.17.min.js"),
    *("charts.js", "films.js", "page.js"),
)
LIMIT = 5_000_000  # bytes of a page


def document(title: str, content: Markup, *, live: bool = False) -> bytes:
    """Return a page.

    Args:
        title: of the window.
        content: what is shown.
        live: whether the page looks for a newer version of itself, from where it came.
    """
    scripts = [_asset(name) for name in SCRIPTS]
    style = _asset("page.css")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy(scripts, style, live)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#main", class_="skip"),
        tag("main", content, id="main"),
        tag("noscript", tag("p", "The figures need JavaScript; their values are in the tables.")),
        *(tag("script", Markup(script)) for script in scripts),
    )
    page = join(Markup("<!doctype html>\n"), tag("html", head, body, lang="en", data_live=live))
    return page.encode(errors="replace")  # names of files need not be UTF-8


def policy(scripts: list[str], style: str, live: bool) -> str:
    """Return the Content-Security-Policy: these scripts, this style and pictures in the page."""
    allowed = {
        "default-src": "'none'",
        "script-src": " ".join(_source(script) for script in scripts),
        "style-src": _source(style),
        "img-src": "data:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {sources}" for name, sources in allowed.items())


def _source(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


@cache
def _asset(name: str) -> str:
    """Return a file of the page; it is put into an element as it is, so it must not end that."""
    text = (files("ewc_paper.page") / "assets" / name).read_text(encoding="utf-8")
    assert "</script" not in text.lower()
    assert "</style" not in text.lower()
    return text
