"""The forget-me-not process as explicit loops over its equations."""

from math import exp, log

import numpy as np


class SlowForgetMeNot:
    """The process as the appendix tells it: models are updated in the window and reverted."""

    def __init__(
        self, levels: int, prior: float, window: int, wins: int, independent: float
    ) -> None:
        self.independent = independent
        self.levels, self.prior, self.window, self.needed = levels, prior, window, wins
        self.learned: list[list[list[int]]] = [[], []]  # frames of each model, the last is held out
        self.p = [0.5, 0.5]
        self.waiting: list[list[int]] = []
        self.time = self.wins = 0

    def predict(self, frame: list[int], seen: list[list[int]]) -> float:
        a = self.prior / self.levels
        return (
            self.independent
            / len(frame)
            * sum(
                log((sum(other[x] == frame[x] for other in seen) + a) / (len(seen) + self.prior))
                for x in range(len(frame))
            )
        )

    def observe(self, image: np.ndarray) -> tuple[int, list[float]]:
        frame = [int(value) * self.levels // 256 for value in image.ravel()]
        self.time += 1
        k = len(self.learned)
        if self.time > 1:
            switch = 1 / self.time
            self.p = [
                sum(self.p[b] * (1 - switch if a == b else switch / (k - 1)) for b in range(k))
                for a in range(k)
            ]
        logs = [self.predict(frame, self.learned[c] + self.waiting) for c in range(k)]
        joint = [self.p[c] * exp(logs[c] - max(logs)) for c in range(k)]
        self.p = [value / sum(joint) for value in joint]
        self.waiting.append(frame)
        if len(self.waiting) == self.window:
            self.end_window()
        return int(np.argmax(self.p[:-1])), self.p

    def end_window(self) -> None:
        best = int(np.argmax(self.p))
        held_out = best == len(self.learned) - 1
        self.wins = self.wins + 1 if held_out else 0
        if not held_out or self.wins == self.needed:
            self.learned[best] = self.learned[best] + self.waiting
            self.wins = 0
            if held_out:
                self.learned.append([])
                self.p = [*self.p, 0.0]
        self.waiting = []
