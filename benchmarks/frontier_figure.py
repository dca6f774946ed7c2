"""The figure of the frontier: loss on the old text against loss on the new, a line per method."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from matplotlib.axes import Axes

from benchmarks.frontier import Point, Tuning
from ewc_paper.figures.style import axes, marker_style, save

# By line, the method in the style of all figures that it looks like.
LOOKS_LIKE = {
    "ewc": "ewc",
    "default": "gates",
    "l2": "l2",
    "early stopping": "plain",
    "rate": "dropout",
    "lora": "ewc-gates-labels",
    "replay": "joint",
}
OTHERS = ("ewc-gates-fmn", "single", "random")  # for lines of other Fishers, in turn
LABELS = {
    **{"ewc": "EWC", "default": "EWC, default budget", "l2": "L2 anchor", "lora": "LoRA"},
    "rate": "smaller learning rate",
}


def draw(results: Mapping[int, Tuning], file: Path) -> Path:
    """Draw the test losses of all methods into a file: thin lines for seeds, thick for the mean."""
    ax = axes(6.4, 4.6)
    every = list(results.values())
    others = 0
    for method in dict.fromkeys(method for tuning in every for method in tuning.lines):
        look = LOOKS_LIKE.get(method)
        if look is None:
            look, others = OTHERS[others % len(OTHERS)], others + 1
        lines = [tuning.lines[method] for tuning in every if method in tuning.lines]
        _draw_method(ax, lines, method, look)
    _mark(ax, [tuning.before for tuning in every], "before fine-tuning", "*")
    _mark(ax, [tuning.plain for tuning in every], "plain fine-tuning, its best step", "x")
    ax.set_xlabel("loss on the new text (nats per token, test)")
    ax.set_ylabel("loss on the old text (nats per token, test)")
    ax.legend(frameon=False, fontsize=8)
    return save(ax, file)


def mean_line(lines: Sequence[Sequence[Point]]) -> list[Point]:
    """Return the mean over lines, value by value; empty while one of them is incomplete."""
    if len({len(line) for line in lines}) != 1:
        return []
    return [
        Point(*(mean(loss) for loss in zip(*(point.values() for point in points), strict=True)))
        for points in zip(*lines, strict=True)
    ]


def _draw_method(ax: Axes, lines: Sequence[Sequence[Point]], method: str, look: str) -> None:
    style = marker_style(look)
    thin = {**style, "linewidth": 0.6, "alpha": 0.45, "markersize": 1.5}
    label = LABELS.get(method, method)
    if average := mean_line(lines):
        if len(average) == 1:
            style = {**style, "markersize": 9, "zorder": 4}
        ax.plot(*_coordinates(average), label=label, **style)
        label = ""
    for line in lines:
        ax.plot(*_coordinates(line), label=label or None, **thin)
        label = ""


def _mark(ax: Axes, points: Sequence[Point], label: str, marker: str) -> None:
    ax.plot(*_coordinates(points), marker, color="#222222", markersize=7, label=label, zorder=3)


def _coordinates(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    return [point.new_test for point in points], [point.old_test for point in points]
