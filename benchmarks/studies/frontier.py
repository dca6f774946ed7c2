"""What fine-tuning gained and what it cost: loss on the new text against loss on the old.

A run ends at a point (loss on the new text, loss on the old text); a method, over its values, is a
line of points. Points are chosen by their losses on the validation parts of both texts, and what is
reported about them are their losses on the test parts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib.axes import Axes

from benchmarks.measure import ResultRow, ResultTable
from ewc_paper.figures.plot import axes, marker_style, save

COSTS = (0.02, 0.05, 0.1, 0.2)  # of the new text's perplexity, beside the best of plain training
# With the default budget: single points.
DEFAULTS = ("default", "kronecker-default", "own-default")
COMPARED = (  # the first line with the second
    ("kronecker", "ewc"),
    ("kronecker", "l2"),
    ("own", "ewc"),
    ("own-averaging", "averaging"),
    ("kronecker-replay", "replay"),
    ("ewc", "l2"),
    ("ewc", "early stopping"),
)
Row = Mapping[str, Any]  # of a result file


@dataclass(frozen=True)
class Point:
    """A model's losses, in nats per token."""

    new: float  # on the validation part
    old: float
    new_test: float
    old_test: float

    def towards(self, other: "Point", share: float) -> "Point":
        """Return the point at a share of the way to another."""
        pairs = zip(self.values(), other.values(), strict=True)
        return Point(*(here + share * (there - here) for here, there in pairs))

    def values(self) -> tuple[float, float, float, float]:
        """Return the four losses."""
        return self.new, self.old, self.new_test, self.old_test


@dataclass(frozen=True)
class Tuning:
    """All results of one seed.

    Args:
        untrained: a model that has learned nothing.
        before: the model before it is fine-tuned.
        plain: plain training, at the step with the smallest loss on the new text.
        lines: by method, its points, in the order of its values.
        values: by method, these values.
        seconds: by method, the processor's seconds of each training; NaN where it was not measured.
    """

    untrained: Point
    before: Point
    plain: Point
    lines: Mapping[str, Sequence[Point]]
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)


def tunings(rows: Iterable[Row]) -> dict[int, Tuning]:
    """Return the results by seed; seeds without plain training are left out."""
    by_seed: dict[int, dict[str, list[Row]]] = {}
    for row in rows:
        by_seed.setdefault(row["seed"], {}).setdefault(row["method"], []).append(row)
    needed = {"untrained", "before", "plain"}
    return {seed: _tuning(own) for seed, own in sorted(by_seed.items()) if needed <= set(own)}


def _tuning(by_method: Mapping[str, Sequence[Row]]) -> Tuning:
    untrained, before = (_points(by_method[name][0])[0] for name in ("untrained", "before"))
    along = _points(by_method["plain"][0])
    lines, values, seconds = {"early stopping": along}, {}, {"plain": _seconds(by_method["plain"])}
    for method, rows in by_method.items():
        if method not in ("untrained", "before", "plain"):
            ordered = sorted(rows, key=lambda row: float(row["value"]))
            lines[method] = [_points(row)[-1] for row in ordered]
            values[method] = [float(row["value"]) for row in ordered]
            seconds[method] = _seconds(ordered)
    best = min(along, key=lambda point: point.new)
    return Tuning(untrained, before, best, lines, values, seconds)


def _seconds(rows: Sequence[Row]) -> list[float]:
    return [float(row["points"][-1].get("seconds", math.nan)) for row in rows]


def _points(row: Row) -> list[Point]:
    return [Point(p["new"], p["old"], p["new_test"], p["old_test"]) for p in row["points"]]


def frontier(points: Iterable[Point]) -> list[Point]:
    """Return the points that no other beats on both texts (validation), the best on new first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.new, point.old)):
        if not kept or point.old < kept[-1].old:
            kept.append(point)
    return kept


def at_loss(points: Iterable[Point], new: float) -> Point | None:
    """Return where the frontier has this loss on the new text (validation), between two points.

    None if no point is that good. If all are better, it is the one with the smallest loss on the
    old text.
    """
    line = frontier(points)
    if not line or line[0].new > new:
        return None
    for better, worse in pairwise(line):
        if better.new <= new <= worse.new:
            return better.towards(worse, (new - better.new) / (worse.new - better.new))
    return line[-1]


def at_cost(tuning: Tuning, method: str, cost: float) -> Point | None:
    """Return where a method's perplexity on the new text is above plain training's by `cost`.

    The model before fine-tuning belongs to every line: it is the end where nothing is learned.
    """
    line = [*tuning.lines.get(method, ()), tuning.before]
    return at_loss(line, tuning.plain.new + math.log1p(cost))


def kept(tuning: Tuning, point: Point) -> float:
    """Return the share of plain training's loss of the old text that a point does not lose."""
    lost = tuning.plain.old_test - tuning.before.old_test
    return (tuning.plain.old_test - point.old_test) / lost


def summary(results: Mapping[int, Tuning]) -> list[ResultTable]:
    """Return the tables: what everything starts from, all methods, their points, and advantages."""
    every = list(results.values())
    seeds = f"{len(every)} seed" + "s" * (len(every) != 1)
    lines = dict.fromkeys(method for tuning in every for method in tuning.lines)
    methods = [method for method in lines if not method.startswith(DEFAULTS)]
    tables = [
        ResultTable(f"Loss on the test parts, {seeds}", _references(every)),
        ResultTable(
            f"Loss on the old text (test), {seeds}, at a perplexity on the new text of",
            [_method_row(every, method) for method in methods],
            (
                "of: above the best of plain training by so much, chosen on the validation parts.",
                "In brackets: the share of plain training's loss of the old text that is kept.",
                "Empty: the method did not learn as much, in at least one of the seeds.",
            ),
        ),
        ResultTable(
            f"Every point on the test parts, {seeds}",
            [row for method in lines if method in every[0].values for row in _rows(every, method)],
            (
                "cost: of the new text's perplexity, beside plain training at its best step.",
                "time: of the processor, as a multiple of plain training's.",
            ),
        ),
    ]
    note = "cost: of the new text's perplexity, beside plain training at its best step (test)."
    as_they_come = [
        _point_row([tuning for tuning in every if method in tuning.lines], method)
        for method in lines
        if method.startswith(DEFAULTS)
    ]
    if as_they_come:
        tables.append(ResultTable("EWC as it comes, without a search", as_they_come, (note,)))
    advantages = [row for ours, other in COMPARED if (row := _advantage(results, ours, other))]
    if advantages:
        note = "nats per token on the test part of the old text; more than 0: the first is better."
        tables.append(ResultTable("How far one line lies below another", advantages, (note,)))
    return tables


def _rows(every: Sequence[Tuning], method: str) -> list[ResultRow]:
    """Return a row for each value of a method: the means over the seeds that have it."""
    rows: list[ResultRow] = []
    for value in sorted({value for tuning in every for value in tuning.values.get(method, ())}):
        found = [
            (tuning, tuning.values[method].index(value))
            for tuning in every
            if value in tuning.values.get(method, ())
        ]
        pairs = [(tuning, tuning.lines[method][place]) for tuning, place in found]
        times = [t.seconds[method][place] / t.seconds["plain"][0] for t, place in found]
        rows.append(
            {
                "method": method + ("" if len(found) == len(every) else f" (seeds: {len(found)})"),
                "value": f"{value:g}",
                "old text": _spread([point.old_test for _, point in pairs]),
                "new text": _spread([point.new_test for _, point in pairs]),
                "kept": f"{mean(kept(*pair) for pair in pairs):.0%}",
                "cost": f"{mean(cost(*pair) for pair in pairs):+.1%}",
                "time": "" if math.isnan(sum(times)) else f"{mean(times):.2f}",
            }
        )
    return rows


def _references(every: Sequence[Tuning]) -> list[ResultRow]:
    points = {
        "untrained": [tuning.untrained for tuning in every],
        "before fine-tuning": [tuning.before for tuning in every],
        "plain fine-tuning": [tuning.plain for tuning in every],
    }
    return [
        {
            "model": name,
            "old text": _spread([point.old_test for point in own]),
            "new text": _spread([point.new_test for point in own]),
        }
        for name, own in points.items()
    ]


def _method_row(every: Sequence[Tuning], method: str) -> ResultRow:
    measured = [tuning for tuning in every if method in tuning.lines]
    seeds = "" if len(measured) == len(every) else f" (seeds: {len(measured)})"
    row: dict[str, str] = {"method": method + seeds}
    for cost in COSTS:
        points = [at_cost(tuning, method, cost) for tuning in measured]
        pairs = [(t, point) for t, point in zip(measured, points, strict=True) if point is not None]
        row[f"+{cost:.0%}"] = (
            f"{_spread([point.old_test for _, point in pairs])} "
            f"({mean(kept(tuning, point) for tuning, point in pairs):.0%})"
            if len(pairs) == len(measured)
            else ""
        )
    return row


def cost(tuning: Tuning, point: Point) -> float:
    """Return how much larger a point's perplexity on the new text is than plain training's."""
    return math.expm1(point.new_test - tuning.plain.new_test)


def _point_row(every: Sequence[Tuning], method: str) -> ResultRow:
    """Return a row of a method that has a single point: what it keeps, and what that costs."""
    pairs = [(tuning, tuning.lines[method][0]) for tuning in every]
    return {
        "method": method,
        "old text": _spread([point.old_test for _, point in pairs]),
        "new text": _spread([point.new_test for _, point in pairs]),
        "kept, by seed": "  ".join(f"{kept(*pair):.1%}" for pair in pairs),
        "cost, by seed": "  ".join(f"{cost(*pair):+.1%}" for pair in pairs),
    }


def _advantage(results: Mapping[int, Tuning], ours: str, other: str) -> ResultRow | None:
    """Return a row: how far `ours` lies below `other`, the mean over COSTS, for each seed."""
    by_seed: dict[int, float] = {}
    for seed, tuning in results.items():
        pairs = [(at_cost(tuning, ours, cost), at_cost(tuning, other, cost)) for cost in COSTS]
        gaps = [theirs.old_test - own.old_test for own, theirs in pairs if own and theirs]
        if gaps:
            by_seed[seed] = mean(gaps)
    if not by_seed:
        return None
    return {
        "line": f"{ours} below {other}",
        "mean": f"{mean(by_seed.values()):+.4f}",
        "by seed": "  ".join(f"{gap:+.4f}" for gap in by_seed.values()),
    }


def _spread(values: Sequence[float]) -> str:
    """Return the mean, and the standard deviation if there are several values."""
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


# By line, the method in the style of all figures that it looks like. Others are in the tables only.
LOOKS_LIKE = {
    "kronecker": "kronecker",
    "own": "ewc-fmn",
    "ewc": "ewc",
    "l2": "l2",
    "early stopping": "plain",
    "replay": "joint",
    "averaging": "dropout",
    "self-replay": "uniform",
}
OTHERS = ("ewc-labels",)  # for lines of other Fishers, in turn
LABELS = {
    "kronecker": "EWC, Kronecker factors",
    "own": "… of the model's own text",
    "ewc": "EWC, diagonal",
    "averaging": "averaged with the weights before",
    "l2": "L2 anchor",
    "replay": "replay of old text",
    "self-replay": "replay of the model's own text",
}


def draw(results: Mapping[int, Tuning], file: Path) -> Path:
    """Draw the test losses of all methods into a file: thin lines for seeds, thick for the mean."""
    ax = axes(6.4, 4.6)
    every = list(results.values())
    measured = dict.fromkeys(method for tuning in every for method in tuning.lines)
    others = [each for each in measured if " " in each and each not in LOOKS_LIKE]
    looks = {method: look for method, look in LOOKS_LIKE.items() if method in measured}
    looks |= {method: OTHERS[place % len(OTHERS)] for place, method in enumerate(others)}
    for method, look in looks.items():
        _draw_method(ax, common_lines(every, method), method, look)
    _mark(ax, [tuning.before for tuning in every], "before fine-tuning", "*")
    _mark(ax, [tuning.plain for tuning in every], "plain fine-tuning, its best step", "x")
    ax.set_xlabel("loss on the new text (nats per token, test)")
    ax.set_ylabel("loss on the old text (nats per token, test)")
    ax.legend(frameon=False, fontsize=8)
    return save(ax, file)


def common_lines(every: Sequence[Tuning], method: str) -> list[list[Point]]:
    """Return the line of each seed that has the method, with the values that all of these have."""
    measured = [tuning for tuning in every if method in tuning.lines]
    values = [tuning.values.get(method, range(len(tuning.lines[method]))) for tuning in measured]
    common = {value for own in values for value in own if all(value in other for other in values)}
    return [
        [point for point, value in zip(tuning.lines[method], own, strict=True) if value in common]
        for tuning, own in zip(measured, values, strict=True)
    ]


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
