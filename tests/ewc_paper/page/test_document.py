"""A page allows its own scripts and style, and nothing else."""

import base64
import hashlib
import re

import pytest

from ewc_paper.page.document import LIMIT, document
from ewc_paper.page.markup import tag

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
