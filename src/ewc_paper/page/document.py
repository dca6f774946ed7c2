"""The whole document: everything that it needs is in it, and nothing else may be loaded or run."""

import base64
import hashlib
from functools import cache
from importlib.resources import files

from ewc_paper.page.markup import Markup, join, tag

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
    return page.encode()


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
