"""Lets the reference show `Example:` in a docstring as code, as it shows `Examples:`."""

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Griffe takes only the plural for a section of code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object with its docstring, before that is parsed."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
