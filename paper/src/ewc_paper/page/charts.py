"""Figures as data for the page: what charts.js draws, a sentence that says it, and its numbers.

Every color of a figure gets a lighter one that can be seen on a dark page. Of a film, all pictures
are in one PNG, as small as the page needs it; films.js shows one after another, so there are no
videos to decode and none that cannot be paused.
"""

import base64
import colorsys
import io
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from PIL import Image

from ewc_paper.figures.panel import (
    DARK,
    DASHDOT,
    DASHED,
    DOTTED,
    SOLID,
    Box,
    Dots,
    Figure,
    Film,
    Level,
    Look,
    Panel,
    Region,
    Series,
)
from ewc_paper.page.markup import Markup, anchor, table_markup, tag

DARK_PAGE = "#16181d"  # the background in page.css
CONTRAST = 5.0  # at least; WCAG asks for 3 in graphics and 4.5 in text
GRAY = 0.12  # saturation below which a color is a shade of gray
LIGHT = 0.7  # lightness from which on a color serves as a background
AREA = 0.18  # of such a color, mixed into that of the page

Rgb = tuple[float, float, float]
WHITE = (1.0, 1.0, 1.0)


def dark(color: str) -> str:
    """Return the color to use on a dark page.

    Those of `DARK` were chosen; of others, shades of gray are inverted and the rest made lighter.
    """
    if to_hex(color) in DARK:
        return DARK[to_hex(color)]
    rgb = to_rgb(color)
    hue, lightness, saturation = colorsys.rgb_to_hls(*rgb)
    if saturation < GRAY:
        return to_hex(colorsys.hls_to_rgb(hue, 1 - lightness, saturation))
    while contrast(to_hex(rgb), DARK_PAGE) < CONTRAST:
        rgb = _mixed(rgb, WHITE, 0.95)
    return to_hex(rgb)


def dark_area(color: str) -> str:
    """Return the color of an area on a dark page: light ones, which lines lie on, become dark."""
    lightness = colorsys.rgb_to_hls(*to_rgb(color))[1]
    if lightness < LIGHT:
        return dark(color)
    return to_hex(_mixed(to_rgb(color), to_rgb(DARK_PAGE), AREA))


def _mixed(color: Rgb, other: Rgb, share: float) -> Rgb:
    """Return a mixture of two colors, with a share of the first."""
    red, green, blue = (share * a + (1 - share) * b for a, b in zip(color, other, strict=True))
    return red, green, blue


def dark_picture(svg: str, page: str) -> str:
    """Return an SVG of matplotlib as it is to be seen on a dark page.

    Args:
        svg: the picture, drawn on white.
        page: the color of the page, which white becomes.
    """

    def other(match: re.Match[str]) -> str:
        fill, color = match[1] or "", match[2].lower()
        if color == "#ffffff":
            return f"{fill}{page}"
        return fill + (dark_area(color) if fill else dark(color))

    shown = re.sub(r"(fill: )?(#[0-9a-fA-F]{6})\b", other, svg)
    # What has no color of its own is black, which SVG takes for granted.
    return re.sub(r"<svg ", f'<svg fill="{dark("#000000")}" ', shown, count=1)


def contrast(color: str, other: str) -> float:
    """Return the contrast of two colors as WCAG defines it, from 1 to 21."""
    high, low = sorted((_luminance(to_rgb(color)), _luminance(to_rgb(other))), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(rgb: Rgb) -> float:
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


LONGEST = 300  # pictures of a film, 21 seconds of Atari


@dataclass(frozen=True)
class Sheet:
    """A film as one picture: `frames` pictures of `width` by `height` pixels, row by row."""

    label: str
    moment: str
    png: bytes
    width: int
    height: int
    columns: int
    frames: int
    milliseconds: int


def sheets(films: Sequence[Film], budget: int) -> list[Sheet]:
    """Return films that need at most `budget` bytes; nothing if even one picture each is too much.

    To save bytes, only every second, fourth, ... picture is kept and shown for longer.
    """
    stride = 1
    while films:
        drawn = [_sheet(film, stride) for film in films]
        if sum(len(sheet.png) for sheet in drawn) <= budget:
            return drawn
        if stride > LONGEST:
            break
        stride *= 2
    return []


def _sheet(film: Film, stride: int) -> Sheet:
    frames = film.frames[:LONGEST:stride]
    count, height, width = frames.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    grid = np.zeros((rows * columns, height, width), np.uint8)
    grid[:count] = frames
    tiled = grid.reshape(rows, columns, height, width).swapaxes(1, 2)
    content = io.BytesIO()
    Image.fromarray(tiled.reshape(rows * height, columns * width)).save(
        content, "PNG", optimize=True
    )
    milliseconds = film.milliseconds * stride
    name = (film.label, film.moment)
    return Sheet(*name, content.getvalue(), width, height, columns, count, milliseconds)


# matplotlib's named line styles, in multiples of the width of the line
DASHES = {SOLID: (), DASHED: (3.7, 1.6), DASHDOT: (6.4, 1.6, 1, 1.6), DOTTED: (1, 1.65)}
NAMED = 4  # series that are named in the sentence about a panel

Data = dict[str, Any]


def panel_data(panel: Panel, sheets: Sequence[Sheet] = ()) -> Data:
    """Return what charts.js draws of a panel."""
    return {
        "title": panel.title,
        "note": panel.note,
        "summary": summary(panel),
        "x": {"label": panel.x_label, "log": panel.x_log, "limits": panel.x_limits},
        "y": {"label": panel.y_label, "limits": panel.y_limits, "names": list(panel.y_names)},
        "borders": list(panel.borders),
        "series": [_series(series) for series in panel.series],
        "levels": [_level(level) for level in panel.levels],
        "dots": [_dots(dots) for dots in panel.dots],
        "boxes": [_box(box) for box in panel.boxes],
        "regions": [_region(region) for region in panel.regions],
        "notes": [{"text": n.text, "x": n.x, "y": n.y, **_color(n.color)} for n in panel.notes],
        "films": [_film(sheet) for sheet in sheets],
    }


def _color(color: str) -> Data:
    light = to_hex(color)
    return {"color": light, "dark": dark(light)}


def _area(color: str) -> Data:
    return {"color": to_hex(color), "dark": dark_area(color)}


def _look(label: str, look: Look) -> Data:
    dashes = DASHES[look.line_style] if isinstance(look.line_style, str) else look.line_style[1]
    dash = [round(length * look.width, 2) for length in dashes]
    return {
        "label": label,
        **_color(look.color),
        "dash": dash,
        "symbol": look.marker,
        "width": look.width,
    }


def _series(series: Series) -> Data:
    return {
        **_look(series.label, series.look),
        "x": list(series.x),
        "mean": series.mean.tolist(),
        "deviation": None if series.deviation is None else series.deviation.tolist(),
        "seeds": {seed: list(values) for seed, values in series.values.items()},
        "markers": series.markers,
        "steps": series.steps,
    }


def _level(level: Level) -> Data:
    return {**_look(level.label, level.look), "value": level.value, "upright": level.upright}


def _dots(dots: Dots) -> Data:
    look = _look(dots.label, dots.look)
    return {**look, "x": list(dots.x), "y": list(dots.y), "small": dots.small}


def _box(box: Box) -> Data:
    place = {"x": list(box.x), "y": None if box.y is None else list(box.y)}
    return {"label": box.label, **_area(box.color), **place, "opacity": box.opacity}


def _region(region: Region) -> Data:
    return {"label": region.label, **_area(region.color), "rings": region.rings}


def _film(sheet: Sheet) -> Data:
    image = base64.b64encode(sheet.png).decode()
    shape = {"width": sheet.width, "height": sheet.height, "columns": sheet.columns}
    return {
        "label": sheet.label,
        "moment": sheet.moment,
        "source": f"data:image/png;base64,{image}",
        **shape,
        "frames": sheet.frames,
        "milliseconds": sheet.milliseconds,
    }


def summary(panel: Panel) -> str:
    """Say what a panel shows, for those who do not see it."""
    shown = f"{panel.y_label or 'rows'} over {panel.x_label}"
    named = [_from_to(series) for series in panel.series[:NAMED]]
    named += [f"{level.label} at {number(level.value)}" for level in panel.levels]
    more = len(panel.series) - NAMED
    if more > 0:
        named.append(f"{more} more")
    if panel.y_names:
        named.append(f"rows: {', '.join(panel.y_names)}")
    return ". ".join(filter(None, (panel.title, shown, "; ".join(filter(None, named))))) + "."


def _from_to(series: Series) -> str:
    finite = [value for value in series.mean.tolist() if math.isfinite(value)]
    if not finite:
        return ""
    return f"{series.label} from {number(finite[0])} to {number(finite[-1])}"


def number(value: float) -> str:
    """Format a number with about four digits, without an exponent where it is readable."""
    if not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def number_tables(figure: Figure) -> Iterable[Markup]:
    """Yield a table of the lines of each panel: a row per position, a column per line."""
    for panel in figure.panels:
        lines = [line for line in panel.series if len(line.x)]
        if lines and not any(line.steps or not _rising(line.x) for line in lines):
            title = ", ".join(filter(None, (panel.title, panel.y_label)))
            head = [panel.x_label, *(line.label for line in lines)]
            yield table_markup(title, head, _number_rows(lines))


def _rising(x: Sequence[float]) -> bool:
    return all(before <= after for before, after in itertools.pairwise(x))


def _number_rows(lines: Sequence[Series]) -> list[list[str]]:
    """Return a row for each position; a line with two values there has both in its cell."""
    positions = sorted({at for line in lines for at in line.x})
    return [[number(at), *(_values_at(line, at) for line in lines)] for at in positions]


def _values_at(series: Series, at: float) -> str:
    places = [place for place, x in enumerate(series.x) if x == at]
    return ", then ".join(_value_at(series, place) for place in places)


def _value_at(series: Series, place: int) -> str:
    """Format the mean over seeds, and its deviation or the values of two seeds."""
    mean = number(float(series.mean[place]))
    if series.deviation is not None:
        return f"{mean} ± {number(float(series.deviation[place]))}"
    pair = ", ".join(number(values[place]) for values in series.pair)
    return f"{mean} ({pair})" if pair else mean


def figure_caption(figure: Figure, identifier: str) -> Markup:
    """Return the title of a figure, which links to it, and how to read it."""
    title = tag("h3", figure.title, " ", anchor(figure.title, identifier))
    return tag("figcaption", title, tag("p", figure.caption))
