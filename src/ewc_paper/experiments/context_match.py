"""Which game each context of a recognizer belongs to, and how often the recognizer was right.

A context is what the recognizer takes for one game. It belongs to the game that was played in most
of the context's agent steps.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple


class ContextUse(NamedTuple):
    """Agent steps in which a game was played and the recognizer reported a context."""

    context: int
    game: str
    steps: int


class ContextMatch(NamedTuple):
    """How well contexts and games match."""

    game_of: dict[int, str]  # by context: the game that it belongs to
    correct: float  # fraction of steps in a context that belongs to the game being played


def match_contexts(uses: Iterable[ContextUse]) -> ContextMatch | None:
    """Assign each context to a game; None if there are no steps."""
    steps: dict[int, Counter[str]] = defaultdict(Counter)
    for context, game, count in uses:
        steps[context][game] += count
    total = sum(games.total() for games in steps.values())
    if total == 0:
        return None
    game_of = {context: games.most_common(1)[0][0] for context, games in steps.items()}
    correct = sum(games[game_of[context]] for context, games in steps.items())
    return ContextMatch(game_of, correct / total)
