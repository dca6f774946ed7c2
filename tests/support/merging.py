"""A recognizer that says what it is told."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ewc.recognition import ScreenRecognizer


class Merging(ScreenRecognizer):
    """Returns the tasks of a script, one per frame, and reports the merges that come with them."""

    def __init__(self, script: list[tuple[int, list[tuple[int, int]]]], **settings: Any) -> None:
        super().__init__(**settings)
        self.script = script

    def observe(self, frame: NDArray[np.uint8]) -> int:
        task, self.merged = self.script.pop(0)
        self.decided = True
        return task
