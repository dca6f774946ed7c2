"""Figures as matplotlib objects: a test can look at axes and legends instead of pixels."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from matplotlib.axes import Axes

from ewc_paper.experiments import SUMMARIES, module_name
from ewc_paper.figures import plot


def drawing_modules() -> list[ModuleType]:
    """Return the modules that save figures, of all experiments."""
    for name in SUMMARIES:
        import_module(module_name(name, "figure"))
    return [
        module
        for name, module in sys.modules.items()
        if name.startswith("ewc_paper.") and getattr(module, "save", None) is plot.save
    ]


class Drawn:
    """The figures that were drawn, by the name of their file."""

    def __init__(self) -> None:
        self.panels: dict[str, list[Axes]] = {}
        self.legends: dict[str, list[str]] = {}
        self.handles: list[Any] = []  # of the last legend

    def save(self, ax: Axes, file: Path) -> Path:
        figure = ax.get_figure(root=True)
        assert figure is not None
        figure.canvas.draw()
        self.panels[file.stem] = list(figure.axes)
        legends = [*figure.legends, *filter(None, (one.get_legend() for one in figure.axes))]
        self.legends[file.stem] = [text.get_text() for one in legends for text in one.get_texts()]
        self.handles = [handle for one in legends for handle in one.legend_handles]
        return file


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[Drawn]:
    """Keep figures in memory instead of saving them."""
    figures = Drawn()
    for module in drawing_modules():
        monkeypatch.setattr(module, "save", figures.save)
    yield figures
    plot.plt.close("all")
