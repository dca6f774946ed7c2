"""Keeps the parts of a number in one line: `97.2 %` and `97.2 ± 0.1` are not broken."""

import re
from typing import Any

CODE = re.compile(r"(<(?:pre|code)\b.*?</(?:pre|code)>)", re.DOTALL)
WITHIN_NUMBER = re.compile(r"(?<=\d)\s(?=[%±])|(?<=±)\s(?=\d)")


def on_page_content(html: str, **_: Any) -> str:
    """Called by MkDocs with the HTML of a page."""
    texts = CODE.split(html)  # every second one is code
    texts[::2] = [WITHIN_NUMBER.sub("\N{NO-BREAK SPACE}", text) for text in texts[::2]]
    return "".join(texts)
