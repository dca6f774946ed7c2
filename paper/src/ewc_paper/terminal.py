"""Output on the terminal: errors as one line, no control codes, and writing that can fail.

Texts in a run directory may come from anybody, so they are shown without markup and without
characters that a terminal would obey.
"""

import contextlib
import difflib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

LONGEST = 1000  # characters of an error


def console() -> "Console":
    """Where tables and progress go; brackets and colons in a string are no markup."""
    from rich.console import Console  # the help does without it

    class Terminal(Console):
        """Raises when the output is closed, where rich would end the program."""

        def on_broken_pipe(self) -> None:
            """Called while the error is handled."""
            raise

    return Terminal(markup=False, emoji=False)


def complain(text: str) -> None:
    """Say in one line what is wrong."""
    with contextlib.suppress(OSError):
        print(f"ewc: {printable(text)[:LONGEST]}", file=sys.stderr)


def printable(text: str) -> str:
    """The text in one line, with `?` for characters that a terminal would not show but obey."""
    line = text.replace("\n", " ").replace("\t", " ")
    return "".join(character if character.isprintable() else "?" for character in line)


def shown(value: Any) -> str:
    """A value as it stands in an error: a string as it is, all else as JSON, and not at length."""
    try:
        plain = isinstance(value, str | float)
        text = str(value) if plain else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return printable(text[:60] + ("..." if len(text) > 60 else "")) or "an empty string"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`: did you mean NAME?`, or nothing if no known name is like the word."""
    likeness = 0.6 if len(word) <= 4 else 0.7
    close = difflib.get_close_matches(word, list(known), 1, likeness)
    return f": did you mean {close[0]}?" if close else ""


def guarded(command: Callable[[], int], errors: tuple[type[Exception], ...]) -> int:
    """Run a command; `errors`, those of the system and lost output are one line and exit code 1.

    An error with an `exit_code` of its own ends with that.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an encoding without λ shows `?`
    code, said = 1, ""
    try:
        code = command()
    except errors as error:
        code, said = getattr(error, "exit_code", 1), str(error)
    except OSError as error:
        said = system_error(error)
    except KeyboardInterrupt:
        code, said = 130, "interrupted"
    except SystemExit:  # from the parser, after its help or its own error
        said = _lost_output()
        if not said:
            raise
    if lost := _lost_output():
        code, said = code or 1, said or lost
    if said:
        complain(said)
    return code


def system_error(error: OSError) -> str:
    """An error of the system in a line."""
    place = f"use {error.filename}" if error.filename else "write the output"
    return f"cannot {place} ({error.strerror})"


def _lost_output() -> str:
    """Write the rest of the output; if that fails, discard it and return what is wrong.

    When Python ends it would try again, and print a traceback.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return f"cannot write the output ({error.strerror})"
    return ""
