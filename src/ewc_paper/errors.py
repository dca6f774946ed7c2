"""Errors of runs that a person can act on; the command line prints them as one line."""


class RunError(Exception):
    """A run cannot start or continue; the message says in one line what is wrong and what to do.

    Everything that is run may raise it or a subclass of it, also in a worker process.
    """


class Damaged(RunError):
    """A file of a run directory is not what was written: what it belongs to must be run again."""


class Interrupted(Exception):
    """A run was asked to stop; its checkpoint is written."""
