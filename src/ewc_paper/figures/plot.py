"""Panels drawn with matplotlib. The layout of a figure, and its legend, are the experiment's."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline

from ewc_paper.figures.panel import Dots, Level, Panel, Region, Series
from ewc_paper.figures.style import look_style, tidy


def plot_panel(ax: Axes, panel: Panel) -> Axes:
    """Draw all marks of a panel into the axes, with their labels for a legend; return the axes."""
    tidy(ax)
    for box in panel.boxes:
        _plot_box(ax, box.x, box.y, color=box.color, alpha=box.opacity)
    for region in panel.regions:
        _plot_region(ax, region)
    marks: list[Series | Level | Dots] = [*panel.series, *panel.levels, *panel.dots]
    for mark in marks:
        _plot_mark(ax, mark)
    for border in panel.borders:
        ax.axvline(border, color="0.75", linewidth=0.8, linestyle=":", zorder=0)
    for note in panel.notes:
        ax.text(note.x, note.y, note.text, ha="center", va="top", color=note.color)
    if panel.note:
        ax.set_title(panel.note, fontsize=9, loc="left")
    _set_axes(ax, panel)
    return ax


def _plot_mark(ax: Axes, mark: Series | Level | Dots) -> None:
    if isinstance(mark, Series):
        plot_series(ax, mark)
    elif isinstance(mark, Level):
        draw = ax.axvline if mark.upright else ax.axhline
        draw(mark.value, label=mark.label, zorder=1, **look_style(mark.look))
    else:
        style: dict[str, Any] = {"color": mark.look.color, "marker": mark.look.marker}
        style |= {"markersize": 2.5, "alpha": 0.5} if mark.small else {"markersize": 5.5}
        ax.plot(mark.x, mark.y, label=mark.label, linestyle="", clip_on=False, zorder=3, **style)


def plot_series(ax: Axes, series: Series) -> None:
    """Plot the mean over seeds and, for several seeds, a band of ± one standard deviation."""
    style = look_style(series.look)
    if series.markers != "none":
        style |= {"marker": series.look.marker, "markersize": 4}
    if series.markers == "end":
        style |= {"markevery": [-1], "markersize": 6}
    if series.steps:
        style["drawstyle"] = "steps-post"
    ax.plot(series.x, series.mean, label=series.label, **style)
    if series.deviation is not None:
        low, high = series.mean - series.deviation, series.mean + series.deviation
        ax.fill_between(series.x, low, high, color=series.look.color, alpha=0.2, linewidth=0)


def _plot_box(
    ax: Axes, x: tuple[float, float], y: tuple[float, float] | None, **style: Any
) -> None:
    if y is None:
        ax.axvspan(*x, linewidth=0, zorder=0, **style)
    else:
        ax.barh(sum(y) / 2, x[1] - x[0], left=x[0], height=y[1] - y[0], linewidth=0, **style)


def _plot_region(ax: Axes, region: Region) -> None:
    outlines = [Outline(np.asarray(ring), closed=True) for ring in region.rings]
    if outlines:
        whole = Outline.make_compound_path(*outlines)
        ax.add_patch(PathPatch(whole, facecolor=region.color, alpha=0.75, linewidth=0, zorder=0))
        ax.add_patch(PathPatch(whole, fill=False, edgecolor="0.4", linewidth=0.6, zorder=0.5))


def _set_axes(ax: Axes, panel: Panel) -> None:
    ax.set_xlabel(panel.x_label)
    ax.set_ylabel(panel.y_label)
    if panel.x_log:
        ax.set_xscale("log")
    if panel.x_limits:
        ax.set_xlim(*panel.x_limits)
    if panel.y_names:
        ax.set_yticks(range(len(panel.y_names)), panel.y_names)
        ax.set_ylim(len(panel.y_names) - 0.5, -0.5)
    else:
        ax.set_ylim(*panel.y_limits)
