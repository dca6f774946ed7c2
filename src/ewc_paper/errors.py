"""The errors of runs that a person can act on; the command line prints them as one line."""


class RunError(Exception):
    """A run cannot start or go on, and the message says what to do."""


class Interrupted(Exception):
    """A run was asked to stop; its checkpoint is written."""
