"""Which context the agent plays in: given by the true name of the game, or recognized from frames.

A context is what the agent takes for one task. It has its own gains and biases in the network, its
own replay memory and its own timers. A recognizer's task is the context of the same number, until
the recognizer finds that two tasks are one: then the context with more steps is kept for both.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ewc.recognition import ForgetMeNot, ScreenRecognizer
from ewc_paper.games.worlds.game import Frame

Recognize = Callable[[Frame], int]  # the context that a frame belongs to
Recognizer = ForgetMeNot | ScreenRecognizer


class Merge(NamedTuple):
    """Two contexts that proved to be one task."""

    kept: int
    dropped: int


def make_recognizer(options: Mapping[str, Any]) -> Recognizer:
    """Make the recognizer that these options describe; options of other things are ignored.

    Of the settings of a `ScreenRecognizer` three are options, `levels`, `side` and `usual`; the
    others are as they were chosen on games of their own. `ForgetMeNot` has the paper's form: all
    pixels count, and a model that wins one window is a task.
    """
    if options.get("recognizer") == "screens":
        screens = ("levels", "side", "usual")
        return ScreenRecognizer(**{name: options[name] for name in screens})
    papers = ("levels", "prior", "window", "side")
    return ForgetMeNot(**{name: options[name] for name in papers}, wins=1)


class ContextTracker:
    """Identifies the present context, and counts the agent steps in each.

    Without a recognizer, contexts are the true labels of the games, numbered in the order in which
    the games first appear; or a single one for all games, without labels.

    Args:
        recognizer: what works out the context, if anything does.
        labelled: whether games have labels.
    """

    def __init__(self, recognizer: Recognizer | None, *, labelled: bool = True) -> None:
        self.recognizer, self._labelled = recognizer, labelled
        self.merges: list[Merge] = []  # contexts that the last frame has shown to be one
        self._context_of: dict[int, int] = {}  # by task of the recognizer, where they differ
        self._labels: dict[str, int] = {}
        self._agent_steps: dict[int, int] = {}
        self._since_consolidation: dict[int, int] = {}

    @property
    def num_contexts(self) -> int:
        """The number of contexts, without those that were merged with another."""
        return len(self._labels) if self.recognizer is None else self.recognizer.num_tasks

    def identify(self, game: str, frame: Frame) -> int | None:
        """Return the present context, or None while the recognizer is undecided."""
        if self.recognizer is None:
            return self._labels.setdefault(self._label(game), len(self._labels))
        task = self.recognizer.observe(frame)
        if isinstance(self.recognizer, ScreenRecognizer):
            self.merges = [self._merge(*pair) for pair in self.recognizer.merged]
        return self._context(task) if self.recognizer.decided else None

    def _label(self, game: str) -> str:
        return game if self._labelled else ""

    def _context(self, task: int) -> int:
        return self._context_of.get(task, task)

    def _merge(self, task: int, into: int) -> Merge:
        pair = self._context(into), self._context(task)
        kept, dropped = sorted(pair, key=self.agent_steps, reverse=True)
        for counts in (self._agent_steps, self._since_consolidation):
            counts[kept] = counts.get(kept, 0) + counts.pop(dropped, 0)
        self._context_of[into] = kept
        self._context_of.pop(task, None)
        return Merge(kept, dropped)

    def recognize_in_test(self, game: str, present: int) -> Recognize:
        """Return how the context is found in a test of a game, in which nothing is learned.

        Args:
            game: the game that is tested.
            present: the context to play in if the game has none yet, or one that was opened just
                now and was never played in.
        """
        if self.recognizer is None or self.recognizer.observations == 0:
            context = self._labels.get(self._label(game), present)
            return lambda frame: context
        observe, contexts = self.recognizer.frozen().observe, dict(self._context_of)
        played = set(self._agent_steps)

        def recognize(frame: Frame) -> int:
            task = observe(frame)
            context = contexts.get(task, task)
            return context if context in played else present

        return recognize

    def count(self, context: int, agent_steps: int) -> None:
        """Add steps that were played in a context."""
        for counts in (self._agent_steps, self._since_consolidation):
            counts[context] = counts.get(context, 0) + agent_steps

    def agent_steps(self, context: int) -> int:
        """Return all agent steps that were played in a context."""
        return self._agent_steps.get(context, 0)

    def steps_since_consolidation(self, context: int) -> int:
        """Return the agent steps in a context since `mark_consolidated`, or since the start."""
        return self._since_consolidation.get(context, 0)

    def mark_consolidated(self, context: int) -> None:
        """Restart the count of steps since the consolidation of a context."""
        self._since_consolidation[context] = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "recognizer": self.recognizer.state_dict() if self.recognizer else {},
            "labels": dict(self._labels),
            "context_of": _with_text_keys(self._context_of),
            "agent_steps": _with_text_keys(self._agent_steps),
            "since_consolidation": _with_text_keys(self._since_consolidation),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.recognizer is not None:
            self.recognizer.load_state_dict(state["recognizer"])
        self._labels = dict(state["labels"])
        self._context_of = _with_number_keys(state["context_of"])
        self._agent_steps = _with_number_keys(state["agent_steps"])
        self._since_consolidation = _with_number_keys(state["since_consolidation"])


def _with_text_keys(counts: dict[int, int]) -> dict[str, int]:
    return {str(key): value for key, value in counts.items()}


def _with_number_keys(counts: dict[str, int]) -> dict[int, int]:
    return {int(key): value for key, value in counts.items()}
