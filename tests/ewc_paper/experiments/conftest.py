"""Figures as matplotlib objects: a test can look at axes and legends instead of pixels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from ewc_paper.experiments.fisher_overlap import figure as fisher_overlap
from ewc_paper.experiments.games import curves as games_curves
from ewc_paper.experiments.games import plasticity as games_plasticity
from ewc_paper.experiments.games import recognition as games_recognition
from ewc_paper.experiments.learning_curves import figure as learning_curves
from ewc_paper.experiments.many_tasks import figure as many_tasks
from ewc_paper.experiments.perturbation import figure as perturbation
from ewc_paper.experiments.recognition import figure as recognition
from ewc_paper.experiments.schematic import figure as schematic
from ewc_paper.experiments.strength import figure as strength
from ewc_paper.figures import style

DRAWING = (
    *(fisher_overlap, games_curves, games_plasticity, games_recognition, learning_curves),
    *(many_tasks, perturbation, recognition, schematic, strength),
)


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
    for module in DRAWING:
        monkeypatch.setattr(module, "save", figures.save)
    yield figures
    style.plt.close("all")
