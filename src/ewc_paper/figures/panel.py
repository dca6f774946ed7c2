"""What a figure shows, as data: computed once, then drawn by matplotlib and by the page of a run.

A figure has panels, and a panel has marks. Marks with the same label belong together: they share
an entry of the legend and, on the page, a switch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ewc_paper.figures.style import Look

Values = Mapping[str, Sequence[float]]  # by seed: one value per position
Seeds = Mapping[str, float]  # by seed: a value
Markers = Literal["none", "all", "end"]


def by_seed(points: Mapping[int, Seeds] | Mapping[float, Seeds]) -> Values:
    """Return the values of each seed; NaN at positions that a seed has none for.

    Args:
        points: by position, by seed: a value.
    """
    seeds = dict.fromkeys(seed for values in points.values() for seed in values)
    return {seed: [values.get(seed, math.nan) for values in points.values()] for seed in seeds}


@dataclass(frozen=True)
class Series:
    """A line: the mean over seeds and, for several seeds, a band of ± one standard deviation.

    Args:
        label: its entry in the legend.
        look: color, line style and marker.
        x: positions.
        values: by seed, one value per position. NaN for a network that diverged, or that has not
            come so far; it is left out of the mean.
        markers: which positions have a marker.
        steps: whether a value holds until the next position.
    """

    label: str
    look: Look
    x: Sequence[float]
    values: Values
    markers: Markers = "none"
    steps: bool = False

    @cached_property
    def _array(self) -> "np.ma.MaskedArray[tuple[int, ...], np.dtype[np.float64]]":
        return np.ma.masked_invalid(np.asarray(list(self.values.values()), dtype=float))

    @cached_property
    def mean(self) -> NDArray[np.float64]:
        """Return the mean over seeds at each position; NaN where there is no value."""
        return np.asarray(self._array.mean(0).filled(np.nan))

    @cached_property
    def deviation(self) -> NDArray[np.float64] | None:
        """Return the standard deviation over seeds at each position; None for a single seed."""
        if len(self.values) < 2:
            return None
        return np.asarray(self._array.std(0, ddof=1).filled(np.nan))


@dataclass(frozen=True)
class Level:
    """A straight line through the whole panel, at a value of y or, if `upright`, of x."""

    label: str
    look: Look
    value: float
    upright: bool = False


@dataclass(frozen=True)
class Dots:
    """Points: small ones for single networks, large ones for what counts."""

    label: str
    look: Look
    x: Sequence[float]
    y: Sequence[float]
    small: bool = False


@dataclass(frozen=True)
class Box:
    """A filled rectangle; without `y` it is as high as the panel.

    Args:
        label: its entry in the legend.
        color: a hexadecimal color.
        x: from and to.
        y: from and to.
        opacity: of the color.
    """

    label: str
    color: str
    x: tuple[float, float]
    y: tuple[float, float] | None = None
    opacity: float = 1.0


@dataclass(frozen=True)
class Region:
    """A filled area: closed lines of points, of which those inside others are holes."""

    label: str
    color: str
    rings: Sequence[Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class Note:
    """A text at a point."""

    text: str
    x: float
    y: float
    color: str


@dataclass(frozen=True)
class Film:
    """Pictures of an agent at play: gray frames (time, height, width), each shown for a while."""

    label: str
    frames: NDArray[np.uint8]
    milliseconds: int


@dataclass(frozen=True)
class Panel:
    """One pair of axes, or films side by side.

    Args:
        title: what this panel shows, of several; also its switch on the page.
        x_label: what x is.
        y_label: what y is.
        borders: values of x where something ends, such as a task.
        x_log: whether x is logarithmic.
        x_limits: from and to.
        y_limits: from and to; None leaves it to the values.
        y_names: names of the values 0, 1, 2, ... of y, from the top.
        note: a remark above the panel.
    """

    x_label: str = ""
    y_label: str = ""
    title: str = ""
    series: Sequence[Series] = ()
    levels: Sequence[Level] = ()
    dots: Sequence[Dots] = ()
    boxes: Sequence[Box] = ()
    regions: Sequence[Region] = ()
    notes: Sequence[Note] = ()
    films: Sequence[Film] = ()
    borders: Sequence[float] = ()
    x_log: bool = False
    x_limits: tuple[float, float] | None = None
    y_limits: tuple[float | None, float | None] = (None, None)
    y_names: Sequence[str] = ()
    note: str = ""


@dataclass(frozen=True)
class Figure:
    """Panels that belong together.

    Args:
        name: of the file that `ewc figure` writes.
        title: what the figure shows, in a line.
        caption: how to read it.
        panels: at least one.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
