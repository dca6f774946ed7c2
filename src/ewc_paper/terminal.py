"""Output on the terminal: errors as one line, no control codes, and writing that can fail.

Texts in a run directory may come from anybody, so they are shown without markup and without
characters that a terminal would obey.
"""

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

LONGEST = 1000  # characters of an error


def console() -> "Console":
    """Where tables and progress go; brackets and colons in a text are no markup."""
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


def guarded(command: Callable[[], int], errors: tuple[type[Exception], ...]) -> int:
    """Run a command; `errors`, those of the system and lost output are one line and exit code 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an encoding without λ shows `?`
    code, said = 1, ""
    try:
        code = command()
    except errors as error:
        said = str(error)
    except OSError as error:
        place = f"use {error.filename}" if error.filename else "write the output"
        said = f"cannot {place} ({error.strerror})"
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
