"""What reaches the terminal: errors as one line, no control codes, and output that can fail.

Texts in a run directory may come from anybody, so they are shown without markup and without
characters that a terminal would obey.
"""

import contextlib
import io
import os
import sys
from collections.abc import Callable

from rich.console import Console

LONGEST = 1000  # characters of an error


class _Terminal(Console):
    """A console that leaves it to its user what follows when nobody reads any more."""

    def on_broken_pipe(self) -> None:
        """Called while the error is handled; rich would end the program here."""
        raise


def console() -> Console:
    """Where tables and progress go; brackets and colons in a text are no markup."""
    return _Terminal(markup=False, emoji=False)


def plain(text: str) -> str:
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
        code = 130
    except SystemExit:  # of the parser, after its help or its own error
        said = _lost_output()
        if not said:
            raise
    if lost := _lost_output():
        code, said = code or 1, said or lost
    if said:
        with contextlib.suppress(OSError):
            print(f"ewc: {plain(said)[:LONGEST]}", file=sys.stderr)
    return code


def _lost_output() -> str:
    """Write what is left of the output; if it cannot be, give it up and say so.

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
