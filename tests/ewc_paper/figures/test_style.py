"""Figures can be read by everybody: colors stay apart, legends match, nothing is cut off."""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.lines import Line2D
from support.game_runs import make_games, write_network
from support.small_runs import end, make_recognition, write_run

from ewc.step_size import How
from ewc_paper.experiments.fisher_overlap import figure as fisher_overlap
from ewc_paper.experiments.games import curves as games_curves
from ewc_paper.experiments.games.data import read
from ewc_paper.experiments.learning_curves import figure as learning_curves
from ewc_paper.experiments.many_tasks import figure as many_tasks
from ewc_paper.experiments.perturbation import figure as perturbation
from ewc_paper.experiments.recognition import figure as recognition
from ewc_paper.experiments.schematic import figure as schematic
from ewc_paper.experiments.strength import figure as strength
from ewc_paper.figures import style
from ewc_paper.figures.names import ARMS, METHODS
from ewc_paper.runs.directory import RunDirectory

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SIGHT = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)
WHITE = np.array([0.95047, 1.0, 1.08883])


def lab(color: str, sight: str) -> np.ndarray:
    """A color in CIELAB, as it is seen."""
    rgb = np.array(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ (SIGHT[sight] @ linear).clip(0, 1) / WHITE
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(one: str, other: str, sight: str) -> float:
    """ΔE of CIE76."""
    return float(np.linalg.norm(lab(one, sight) - lab(other, sight)))


def test_differences_are_those_that_others_measured() -> None:
    assert difference("#ffffff", "#000000", "normal") == pytest.approx(100, abs=0.01)
    assert difference("#c8282d", "#8c5a2b", "deuteranopia") == pytest.approx(8.9, abs=0.05)
    assert difference("#c8282d", "#3a9a4a", "deuteranopia") == pytest.approx(14.9, abs=0.05)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize(
    "names",
    [tuple(METHODS), tuple(ARMS), tuple(perturbation.SHAPES), get_args(How)],
    ids=["methods", "arms", "shapes", "ways"],
)
def test_what_is_in_one_figure_is_told_apart(names: tuple[str, ...], sight: str) -> None:
    for one, other in combinations(names, 2):
        (color, line, marker), others = style.LOOKS[one], style.LOOKS[other]
        assert difference(color, others[0], sight) > 25, (one, other)
        assert line != others[1]
        assert marker != others[2]


class Drawn:
    """The axes of the figures that were saved, by the name of the file."""

    def __init__(self) -> None:
        self.panels: dict[str, list[Axes]] = {}
        self.legends: dict[str, list[str]] = {}

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
    found = Drawn()
    views = (fisher_overlap, games_curves, learning_curves, many_tasks, perturbation)
    for view in (*views, recognition, schematic, strength):
        monkeypatch.setattr(view, "save", found.save)
    yield found
    style.plt.close("all")


def test_contexts_are_whole_numbers(tmp_path: Path, drawn: Drawn) -> None:
    recognition.draw(make_recognition(tmp_path))
    (ax,) = drawn.panels["recognition"]
    assert all(float(tick).is_integer() for tick in ax.get_yticks())


@pytest.mark.parametrize(("arm", "title", "points"), [("plain", "", 0), ("ewc-labels", "EWC", 3)])
def test_the_schedule_shows_protection_only_where_there_is_any(
    arm: str, title: str, points: int, tmp_path: Path, drawn: Drawn
) -> None:
    run = RunDirectory(tmp_path)
    run.start({"experiment": "games"})
    games = ["Pong", "Krull"]
    write_network(run, arm, arm, 0, games, [*games, "Pong"], kept=0.5)
    games_curves.draw_schedule(read(run), tmp_path / "schedule.png")
    (ax,) = drawn.panels["schedule"]
    assert title in ax.get_title(loc="left")
    assert bool(title) == bool(ax.get_title(loc="left"))
    assert len(ax.lines) == points


def looks(line: Any) -> tuple[str, Any]:
    assert isinstance(line, Line2D)
    return to_hex(line.get_color()), line._unscaled_dash_pattern


def test_the_legend_of_the_games_looks_like_the_plot(tmp_path: Path, drawn: Drawn) -> None:
    games_curves.draw_by_game(read(make_games(tmp_path)), tmp_path / "games.png")
    for ax in drawn.panels["games"]:
        assert [looks(line) for line in ax.lines] == [looks(line) for line in drawn.handles]
    assert len({str(looks(line)[1]) for line in drawn.handles}) == len(ARMS)


@pytest.mark.parametrize("arms", [("single", "ewc-fmn", "plain"), ("plain", "single", "ewc-fmn")])
def test_arms_are_in_the_order_given(arms: tuple[str, ...], tmp_path: Path, drawn: Drawn) -> None:
    run = RunDirectory(tmp_path)
    run.start({"experiment": "games", "arms": list(arms)})
    games = ["Pong", "Krull"]
    for arm in arms[::-1]:
        for name in games if arm == "single" else ["all"]:
            own = [name] if arm == "single" else games
            write_network(run, f"{arm}-{name}", arm, 0, own, own, kept=0.5)
    names = [ARMS[arm] for arm in arms]
    games_curves.draw_totals(read(run), tmp_path / "total.png")
    games_curves.draw_by_game(read(run), tmp_path / "games.png")
    assert drawn.legends == {"total": names, "games": names}


@pytest.mark.parametrize("methods", [("sgd", "ewc", "l2"), ("l2", "ewc", "sgd")])
def test_methods_are_in_the_order_given(
    methods: tuple[str, ...], tmp_path: Path, drawn: Drawn
) -> None:
    names = [METHODS[method] for method in methods]
    config = {"experiment": "learning-curves", "epochs": 2, "tasks": 1, "methods": list(methods)}
    run = write_run(tmp_path / "curves", config, {m: ({}, [end(0, 0.9)]) for m in methods})
    learning_curves.draw(run)
    assert drawn.legends["learning-curves"] == names
    cells = list(learning_curves.table(run).columns[0].cells)
    assert cells == names

    parts = {m: ({"label": m, "combination": 0}, [end(0, 0.9)]) for m in methods}
    run = write_run(
        tmp_path / "many", {"experiment": "many-tasks", "methods": list(methods)}, parts
    )
    many_tasks.draw(run)
    assert drawn.legends["many-tasks"] == names


@pytest.mark.parametrize("shapes", [("nullspace", "uniform"), ("uniform", "nullspace")])
def test_shapes_are_in_the_order_given(
    shapes: tuple[str, ...], tmp_path: Path, drawn: Drawn
) -> None:
    rows = [{"kind": "noise", "shape": s, "scale": 0.1, "scores": [1.0]} for s in sorted(shapes)]
    config = {"experiment": "perturbation", "game": "Pong", "shapes": list(shapes)}
    perturbation.draw(write_run(tmp_path, config, {"seed0": ({}, rows)}))
    assert drawn.legends["perturbation"] == [perturbation.SHAPES[shape] for shape in shapes]


@pytest.mark.parametrize("ways", [("proximal", "gradient"), ("gradient", "proximal")])
def test_ways_are_in_the_order_given_and_the_second_panel_is_zoomed(
    ways: tuple[str, ...], tmp_path: Path, drawn: Drawn
) -> None:
    parts = {
        f"{how}-{value:g}": (
            {"recipe": {"how": how, "strength": value, "tasks": 1}},
            [end(0, 1.0 if value == 1 else 0.2)],
        )
        for how in ways
        for value in (1.0, 10.0)
    }
    config = {"experiment": "strength", "tasks": 1, "ways": list(ways)}
    strength.draw(write_run(tmp_path, config, parts))
    whole, zoomed = drawn.panels["strength"]
    assert drawn.legends["strength"] == list(ways)
    assert whole.get_title(loc="left") == ""
    assert "zoomed" in zoomed.get_title(loc="left")
    assert_markers_are_whole(whole)


def test_a_marker_at_one_is_whole(tmp_path: Path, drawn: Drawn) -> None:
    parts = {"8": ({"square": 8}, [{"overlap": [1.0, 1.0]}])}
    fisher_overlap.draw(write_run(tmp_path, {"experiment": "fisher-overlap"}, parts))
    (ax,) = drawn.panels["fisher-overlap"]
    assert_markers_are_whole(ax)


def test_squares_are_in_the_order_given(tmp_path: Path, drawn: Drawn) -> None:
    parts = {f"{s}": ({"square": s}, [{"overlap": [0.5]}]) for s in (8, 26)}
    config = {"experiment": "fisher-overlap", "squares": [26, 8]}
    fisher_overlap.draw(write_run(tmp_path, config, parts))
    assert drawn.legends["fisher-overlap"] == ["26×26 permuted", "8×8 permuted"]


def assert_markers_are_whole(ax: Axes) -> None:
    """No marker reaches over the top of the axes, where it would be cut."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    for line in ax.lines:
        radius = (line.get_markersize() + line.get_markeredgewidth()) / 2 * figure.dpi / 72
        tops = ax.transData.transform(line.get_xydata())[:, 1] + radius
        assert tops.max() <= ax.bbox.y1 or not line.get_clip_on()
