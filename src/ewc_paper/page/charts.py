"""Figures as data for the page: what charts.js draws, a sentence that says it, and its numbers."""

import base64
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.colors import to_hex

from ewc_paper.figures.panel import Box, Dots, Figure, Level, Panel, Region, Series
from ewc_paper.figures.style import DASHDOT, DASHED, DOTTED, SOLID, Look
from ewc_paper.page.colors import dark, dark_area
from ewc_paper.page.films import Sheet
from ewc_paper.page.markup import Markup, tag
from ewc_paper.page.tables import table_markup

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
        "series": [_series(one) for one in panel.series],
        "levels": [_level(one) for one in panel.levels],
        "dots": [_dots(one) for one in panel.dots],
        "boxes": [_box(one) for one in panel.boxes],
        "regions": [_region(one) for one in panel.regions],
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
    dash = [round(one * look.width, 2) for one in dashes]
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
        "source": f"data:image/png;base64,{image}",
        **shape,
        "frames": sheet.frames,
        "milliseconds": sheet.milliseconds,
    }


def summary(panel: Panel) -> str:
    """Say what a panel shows, for those who do not see it."""
    shown = f"{panel.y_label or 'rows'} over {panel.x_label}"
    named = [_from_to(one) for one in panel.series[:NAMED]]
    named += [f"{one.label} at {number(one.value)}" for one in panel.levels]
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
        lines = [one for one in panel.series if len(one.x)]
        if lines and not any(one.steps or not _rising(one.x) for one in lines):
            title = ", ".join(filter(None, (panel.title, panel.y_label)))
            head = [panel.x_label, *(one.label for one in lines)]
            yield table_markup(title, head, _number_rows(lines))


def _rising(x: Sequence[float]) -> bool:
    return all(before <= after for before, after in itertools.pairwise(x))


def _number_rows(lines: Sequence[Series]) -> list[list[str]]:
    """Return a row for each position; a line with two values there has both in its cell."""
    positions = sorted({at for one in lines for at in one.x})
    return [[number(at), *(_values_at(one, at) for one in lines)] for at in positions]


def _values_at(series: Series, at: float) -> str:
    places = [place for place, x in enumerate(series.x) if x == at]
    deviation = series.deviation
    texts = [
        number(float(series.mean[place]))
        + ("" if deviation is None else f" ± {number(float(deviation[place]))}")
        for place in places
    ]
    return ", then ".join(texts)


def figure_caption(figure: Figure) -> Markup:
    """Return the title of a figure and how to read it."""
    return tag("figcaption", tag("h3", figure.title), tag("p", figure.caption))
