"""Figures drawn with matplotlib: panels and their marks, axes, legends, and files."""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # figures are files; no display is needed

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Outline
from matplotlib.ticker import EngFormatter, MaxNLocator

from ewc_paper.figures.names import game_name
from ewc_paper.figures.panel import LOOKS, Dots, Figure, Level, Look, Panel, Region, Series
from ewc_paper.runs.files import replace_file


def draw_figures(figures: Iterable[Figure], directory: Path, suffix: str = "png") -> list[Path]:
    """Draw figures as they are arranged into files of a format, and return the files."""
    return [_draw_figure(figure, directory / f"{figure.name}.{suffix}") for figure in figures]


def _draw_figure(figure: Figure, file: Path) -> Path:
    arrangement = figure.arrangement
    _, grid = plt.subplots(
        *arrangement.grid,
        figsize=arrangement.size,
        sharex=arrangement.shared,
        sharey=arrangement.shared,
        layout="constrained",
        squeeze=False,
    )
    for number, (ax, panel) in enumerate(zip(grid.flat, figure.panels, strict=True)):
        plot_panel(ax, panel)
        if number in arrangement.titled:
            ax.set_title(panel.title, fontsize=9, loc="left")
        if arrangement.shared:
            ax.label_outer()
    first: Axes = grid[0, 0]
    if first.get_legend_handles_labels()[0]:
        first.legend(frameon=False, **arrangement.legend)
    return save(first, file)


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
    """Plot the mean over seeds and a band of ± one standard deviation, or a thin line per seed."""
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
    for values in series.pair:
        ax.plot(
            series.x,
            values,
            color=series.look.color,
            linewidth=0.6,
            alpha=0.7,
            drawstyle="steps-post" if series.steps else "default",
        )


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
    if panel.x_whole:
        use_whole_numbers(ax.xaxis)


def look_style(look: Look) -> dict[str, Any]:
    """Return the arguments of `plot` for a line, without markers."""
    return {"color": look.color, "linestyle": look.line_style, "linewidth": look.width}


def line_style(name: str) -> dict[str, Any]:
    """Return the arguments of `plot` for the line of a method, without markers."""
    return look_style(LOOKS[name])


def marker_style(name: str) -> dict[str, Any]:
    """Return the arguments of `plot` for the line of a method, with a marker at each point."""
    return {**line_style(name), "marker": LOOKS[name].marker, "markersize": 4}


def axes(width: float = 5.0, height: float = 3.4) -> Axes:
    """Create a figure of a size in inches and return its axes."""
    _, ax = plt.subplots(figsize=(width, height), layout="constrained")
    return tidy(ax)


def use_short_numbers(ax: Axes) -> None:
    """Write numbers on the x axis as 40k or 1.2M, for agent steps."""
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))


def use_whole_numbers(axis: Axis) -> None:
    """Put ticks on an axis at round whole numbers only."""
    axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))


def tidy(ax: Axes) -> Axes:
    """Hide the top and right borders of the axes, and return the axes."""
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def save(ax: Axes, file: Path) -> Path:
    """Save the figure that the axes are part of, close it, and return the file.

    Its suffix tells the format: .png, .svg or .pdf.
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    picture = io.BytesIO()
    kind = file.suffix.removeprefix(".")
    # The same figure is the same SVG: no date, and identifiers that do not change.
    undated: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {}
    with plt.rc_context({"svg.hashsalt": file.stem}):
        figure.savefig(picture, format=kind, dpi=150, **undated)
    plt.close(figure)
    return replace_file(file, picture.getvalue())


def game_colors(games: Sequence[str]) -> dict[str, str]:
    """Return a color for each game; from the 21st game on, colors are repeated."""
    palette = plt.colormaps["tab10" if len(games) <= 10 else "tab20"]
    return {game: to_hex(palette(number)) for number, game in enumerate(games)}


def add_game_legend(ax: Axes, colors: dict[str, str], opacity: float = 1.0) -> None:
    """Add a legend of the games to the right of the axes.

    Args:
        ax: axes of a figure without other panels.
        colors: what `game_colors` returned.
        opacity: with which the colors were drawn.
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.legend(
        handles=[
            Patch(color=color, alpha=opacity, label=game_name(game))
            for game, color in colors.items()
        ],
        title="game being played",
        loc="outside right upper",
        alignment="left",
        frameon=False,
        fontsize=8,
    )
