"""Fails the build of the site if a page would load anything from a server when it is viewed."""

import re
from typing import Any

from mkdocs.exceptions import PluginError

# Links that a reader may follow are fine; what a browser loads by itself is not.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video)\b[^>]*\bsrc=["']?(?:https?:)?//[^\s"'>]+"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preconnect|preload|icon))"""
    r"""[^>]*\bhref=["']?(?:https?:)?//[^\s"'>]+""",
    re.IGNORECASE,
)


DIALOG = 'data-md-component="search" role="dialog"'


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Called by MkDocs with the finished HTML of every page.

    The theme's search dialog has no name that a screen reader could say; it gets one here.
    """
    output = output.replace(DIALOG, f'{DIALOG} aria-label="Search"', 1)
    if found := LOADED.search(output):
        raise PluginError(f"{page.file.src_uri} would load from a server: {found.group(0)}")
    return output
