"""Errors of runs that a person can act on; the command line prints them as one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class RunError(Exception):
    """A run cannot start or continue; the message says in one line what is wrong and what to do.

    Everything that is run may raise it or a subclass of it, also in a worker process.
    """

    exit_code = 1


class BadOption(RunError):
    """An option that does not fit; nothing was written."""

    exit_code = 2


class Damaged(RunError):
    """A file of a run directory is not what was written: what it belongs to must be run again."""


class OtherOptions(RunError):
    """A directory holds a run with other options than those to resume."""


class Interrupted(Exception):
    """A run was asked to stop; its checkpoint is written."""


@contextmanager
def fitting_files(path: Path, what: str) -> Iterator[None]:
    """Turn what goes wrong with files that passed all checks into a RunError that names their run.

    Args:
        path: the directory of the files.
        what: what cannot be done with it, such as "cannot be drawn".
    """
    try:
        yield
    except (RunError, OSError):
        raise
    except Exception as error:
        raise RunError(
            f"{path} {what}: its files do not fit together ({type(error).__name__}: {error})"
        ) from error
