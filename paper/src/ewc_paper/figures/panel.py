"""What a figure shows, as data: computed once, then drawn by matplotlib and by the page of a run.

A figure has panels, and a panel has marks. Marks with the same label belong together: they share
an entry of the legend and, on the page, a switch. How marks look is data too: a color, line style
and marker per method. Colors of one figure can be told apart with color blindness too (a test
measures it), and lines of different colors also differ in line style and marker.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

RED = "#c8282d"
ORANGE = "#e69f00"
BLUE = "#2b6cb0"
GRAY = "#777777"
BLACK = "#222222"
VIOLET = "#bf00ff"
LIME = "#adda81"
NAVY = "#0000a3"
INDIGO = "#000090"

# What these colors are on a dark page, where they too can be told apart.
DARK = {
    RED: "#ff5a50",
    ORANGE: "#ffc43d",
    BLUE: "#86c5ff",
    GRAY: "#9a9a9a",
    BLACK: "#f0f0f0",
    VIOLET: "#d040ff",
    LIME: "#99ff99",
    NAVY: "#3d6eff",
    INDIGO: "#99ff99",
}

SOLID, DASHED, DASHDOT, DOTTED = "-", "--", "-.", ":"
DASHDOTDOT = (0, (5, 1, 1, 1, 1, 1))
LONG_DASHED = (0, (8, 3))
LONG_DASHDOT = (0, (8, 2, 1, 2))
DENSELY_DOTTED = (0, (1, 1))


class Look(NamedTuple):
    """How one line of a figure looks."""

    color: str
    line_style: Any  # as matplotlib's `linestyle`
    marker: str
    width: float = 1.5


# By method, arm of `games`, kind of pull (`strength`) and shape of noise (`perturbation`).
LOOKS = {
    "kronecker": Look(INDIGO, LONG_DASHDOT, "P"),
    "ewc": Look(RED, SOLID, "o"),
    "l2": Look(ORANGE, DASHDOT, "s"),
    "sgd": Look(BLUE, DASHED, "^"),
    "dropout": Look(VIOLET, DOTTED, "D"),
    "joint": Look(GRAY, DASHDOTDOT, "v"),
    "single": Look(BLACK, LONG_DASHED, "", 1.0),
    "proximal": Look(RED, SOLID, "o"),
    "gradient": Look(BLUE, DASHED, "^"),
    "plain": Look(BLUE, DASHED, "^"),
    "gates": Look(VIOLET, DENSELY_DOTTED, "d"),
    "ewc-gates-labels": Look(RED, SOLID, "o"),
    "ewc-gates-fmn": Look(ORANGE, DASHDOT, "s"),
    "ewc-labels": Look(NAVY, DASHDOTDOT, "P"),
    "ewc-fmn": Look(LIME, LONG_DASHDOT, "X"),
    # Colors of arms that no preset compares with these.
    "plain-unlabelled": Look(VIOLET, DENSELY_DOTTED, "*"),
    "ewc-kronecker-labels": Look(ORANGE, DASHDOT, "p"),
    "ewc-kronecker": Look(RED, SOLID, "v"),
    "ewc-kronecker-gates-labels": Look(VIOLET, DENSELY_DOTTED, "<"),
    "ewc-kronecker-gates": Look(LIME, LONG_DASHDOT, ">"),
    "random": Look(GRAY, DOTTED, "D"),
    "uniform": Look(BLACK, SOLID, "o"),
    "inverse-fisher": Look(BLUE, DASHED, "^"),
    "nullspace": Look(ORANGE, DASHDOT, "s"),
}


BAND_SEEDS = 3  # from so many on, a band shows the spread over seeds
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
    """A line: the mean over seeds, and how far they are apart.

    From three seeds on that is a band of ± one standard deviation; of two, each has a thin line.

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
        """Return the standard deviation over seeds at each position; None for one or two seeds."""
        if len(self.values) < BAND_SEEDS:
            return None
        return np.asarray(self._array.std(0, ddof=1).filled(np.nan))

    @property
    def pair(self) -> list[Sequence[float]]:
        """Return the values of each seed if there are two: a line each says more than a band."""
        return list(self.values.values()) if len(self.values) == 2 else []


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
    """Pictures of an agent at play: gray frames (time, height, width), each shown for a while.

    Args:
        label: who plays.
        frames: the pictures.
        milliseconds: for which each is shown.
        moment: of its training; films of the same moment are side by side.
    """

    label: str
    frames: NDArray[np.uint8]
    milliseconds: int
    moment: str = ""


@dataclass(frozen=True)
class Panel:
    """One pair of axes, or films side by side.

    Args:
        title: what this panel shows, of several; also its switch on the page.
        x_label: what x is.
        y_label: what y is.
        borders: values of x where something ends, such as a task.
        x_log: whether x is logarithmic.
        x_whole: whether x is counted, and has ticks at whole numbers alone.
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
    x_whole: bool = False
    x_limits: tuple[float, float] | None = None
    y_limits: tuple[float | None, float | None] = (None, None)
    y_names: Sequence[str] = ()
    note: str = ""


@dataclass(frozen=True)
class Arrangement:
    """How the panels of a figure are arranged in a file; the page arranges them by itself.

    Args:
        size: width and height in inches.
        grid: rows and columns.
        shared: whether all panels share their axes, which are labeled at the outer ones alone.
        titled: numbers of the panels whose titles are written above them.
        legend: arguments of the legend, which is in the first panel.
    """

    size: tuple[float, float] = (5.0, 3.4)
    grid: tuple[int, int] = (1, 1)
    shared: bool = False
    titled: Sequence[int] = ()
    legend: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """Panels that belong together; of a line with very many positions only some are kept.

    Args:
        name: of the file that `ewc figure` writes.
        title: what the figure shows, in a line.
        caption: how to read it.
        panels: at least one.
        arrangement: of the panels in that file.
    """

    name: str
    title: str
    caption: str
    panels: Sequence[Panel]
    arrangement: Arrangement = Arrangement()

    def __post_init__(self) -> None:
        panels = [
            replace(panel, series=[thinned(series) for series in panel.series])
            if any(len(series.x) > MAX_POSITIONS for series in panel.series)
            else panel
            for panel in self.panels
        ]
        object.__setattr__(self, "panels", panels)


MAX_POSITIONS = 4000  # of a line: more than the pixels of a figure


def thinned(series: Series) -> Series:
    """Return a line with at most `MAX_POSITIONS` positions that looks the same.

    Of each stretch of it the lowest and the highest mean are kept, so that no peak is lost, and the
    first and the last position.
    """
    count = len(series.x)
    if count <= MAX_POSITIONS:
        return series
    edges = np.linspace(0, count, (MAX_POSITIONS - 2) // 2 + 1).astype(int)
    low, high = np.nan_to_num(series.mean, nan=np.inf), np.nan_to_num(series.mean, nan=-np.inf)
    kept = {0, count - 1}
    for start, stop in itertools.pairwise(edges):
        kept |= {start + int(low[start:stop].argmin()), start + int(high[start:stop].argmax())}
    places = sorted(kept)
    values = {seed: [each[place] for place in places] for seed, each in series.values.items()}
    return replace(series, x=[series.x[place] for place in places], values=values)
