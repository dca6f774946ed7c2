"""HTML that is escaped by construction: a text becomes markup only through `tag`.

Texts in a run directory may come from anybody. What is not `Markup` is escaped, so a run named
`<script>` is shown and not run.
"""

import html
import json
import math
from typing import Any

VOID = {"br", "col", "input", "link", "meta"}  # elements without an end tag


class Markup(str):
    """HTML that is already escaped."""


def tag(name: str, /, *children: str, **attributes: str | bool | None) -> Markup:
    """Return an element.

    Args:
        name: of the element.
        children: markup, or texts, which are escaped.
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
    """Return a text as markup that shows it; markup is returned as it is."""
    return text if isinstance(text, Markup) else Markup(html.escape(str(text), quote=True))


def join(*children: str) -> Markup:
    """Return markup and texts one after another."""
    return Markup("".join(escape(child) for child in children))


def script_data(value: Any) -> Markup:
    """Return a script element that holds data and runs nothing.

    Nothing in a text can end the element: `<`, `>` and `&` are written as JSON escapes.
    """
    text = json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json">{text}</script>')


def _finite(value: Any) -> Any:
    """Return the value with null in place of NaN and infinity, and floats of 8 digits."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.8g}") if math.isfinite(value) else None
    return value
