"""Things to run that train nothing, for tests of the engine; worker processes import them."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ewc_paper.errors import RunError

STEPS = 4000


class Counter:
    """Counts for about ten seconds and reports every count, with a long row."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def progress(self) -> float:
        return self.count / STEPS

    def run(self) -> Iterator[dict[str, Any] | None]:
        while self.count < STEPS:
            time.sleep(0.0025)
            self.count += 1
            yield {"count": self.count, "text": "x" * 1000}

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Failing(Counter):
    """Counts to three, once a file is there, if one is named."""

    def __init__(self, after: str | None) -> None:
        super().__init__()
        self.after = after

    def run(self) -> Iterator[dict[str, Any] | None]:
        while self.after and not Path(self.after).exists():
            time.sleep(0.01)
        for row in super().run():
            if self.count == 3:
                raise RunError("three is too much")
            yield row


def make_counter(config: dict[str, Any]) -> Counter:
    return Counter()


def make_failing(config: dict[str, Any]) -> Counter:
    return Failing(config.get("after"))
