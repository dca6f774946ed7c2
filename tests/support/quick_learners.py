"""Things to run that train nothing, for tests of the engine; worker processes import them."""

import os
import signal
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


class Short(Counter):
    """Counts to ten, in some pieces of an even length."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds

    @property
    def progress(self) -> float:
        return self.count / 10

    def run(self) -> Iterator[dict[str, Any] | None]:
        while self.count < 10:
            time.sleep(self.seconds)
            self.piece()
            self.count += 1
            yield {"count": self.count}

    def piece(self) -> None:
        """What is done before a count."""


class Dying(Short):
    """Logs every piece, and kills its process in the fifth as often as it is told."""

    def __init__(self, deaths: int, log: str) -> None:
        super().__init__()
        self.deaths = deaths
        self.log = Path(log)

    def piece(self) -> None:
        with open(self.log, "a") as file:
            file.write(f"{self.count + 1} ")
        if self.count == 4 and self.log.read_text().split().count("5") <= self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)


class Logged(Short):
    """Logs every piece with its label and the process that started its worker."""

    def __init__(self, log: str, label: str, seconds: float) -> None:
        super().__init__(seconds)
        self.log = Path(log)
        self.label = label

    def piece(self) -> None:
        with open(self.log, "a") as file:
            file.write(f"{self.label} {self.count + 1} {os.getppid()}\n")


def make_short(config: dict[str, Any]) -> Counter:
    return Short(**config)


def make_dying(config: dict[str, Any]) -> Counter:
    return Dying(**config)


def make_logged(config: dict[str, Any]) -> Counter:
    return Logged(**config)
