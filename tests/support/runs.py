"""Run directories, small things to run, and how tables and figures are read."""

import gzip
import json
import os
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ewc_paper.errors import RunError
from ewc_paper.runs.checksums import with_checksum
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.engine import Event, Job, Report, run_job
from ewc_paper.runs.loop import Resumable, run_resumable

if TYPE_CHECKING:  # processes that import this file start without matplotlib
    from matplotlib.axes import Axes


def write_run(
    path: Path, config: dict[str, Any], parts: dict[str, tuple[dict[str, Any], list[Any]]]
) -> RunDirectory:
    run = RunDirectory(path)
    run.start(config)
    for name, (part_config, rows) in parts.items():
        run.part(name).start(part_config)
        for row in rows:
            run.part(name).append(row)
    return run


def rewrite_record(file: Path, record: dict[str, Any]) -> None:
    """Write a config.json or sweep.json as if it had always been so: with the right checksum."""
    content = {name: value for name, value in record.items() if name not in ("format", "sha256")}
    file.write_text(json.dumps(with_checksum(content)))


def change_record(file: Path, **changes: Any) -> None:
    """Change fields of a config.json or sweep.json, and its checksum."""
    rewrite_record(file, json.loads(file.read_text()) | changes)


def end(task: int, *accuracy: float, **more: Any) -> dict[str, Any]:
    return {"task": task, "epoch": 2.0, "task_ended": True, "accuracy": list(accuracy), **more}


def make_learning_curves(path: Path) -> RunDirectory:
    rows = [end(0, 0.97), end(1, 0.61, 0.981)]
    config = {"experiment": "learning-curves", "epochs": 2, "tasks": 2}
    return write_run(path, config, {"ewc": ({}, rows), "sgd": ({}, rows)})


def make_many_tasks(path: Path) -> RunDirectory:
    parts = {
        "ewc-0": (
            {"label": "ewc"},
            [end(0, 0.9, validation=[0.9]), end(1, 0.9, 0.8, validation=[0.9, 0.7])],
        ),
        "single": ({"label": "single"}, [end(0, 0.98, validation=[0.98])]),
    }
    return write_run(path, {"experiment": "many-tasks"}, parts)


def make_strength(path: Path) -> RunDirectory:
    parts = {
        f"{value:g}-{seed}": (
            {"recipe": {"how": "proximal", "strength": value, "tasks": 2, "seed": seed}},
            [end(0, 0.5), end(1, 0.9, 0.8 + seed / 10)],
        )
        for value in (10.0, 1.0)
        for seed in (0, 1)
    }
    return write_run(path, {"experiment": "strength", "tasks": 2}, parts)


def make_fisher_overlap(path: Path) -> RunDirectory:
    parts = {
        f"{square}": ({"square": square}, [end(0, 0.9), {"overlap": [0.25, 0.5]}])
        for square in (8, 26)
    }
    return write_run(path, {"experiment": "fisher-overlap"}, parts)


def make_schematic(path: Path) -> RunDirectory:
    landscape = {
        "across": [0, 1],
        "up": [0, 1],
        "loss_a": [[0, 1], [0, 1]],
        "loss_b": [[0, 0], [1, 1]],
    }
    ways = [
        {"way": way, "points": [[0, 0], [1, 1]], "loss_a": 0.125, "loss_b": 0.5}
        for way in ("A", "sgd", "l2", "ewc")
    ]
    return write_run(path, {"experiment": "schematic"}, {"schematic": ({}, [landscape, *ways])})


def make_perturbation(path: Path) -> RunDirectory:
    levels = {"uniform": 20.0, "inverse-fisher": 60.0, "nullspace": 50.0}
    points = [("uniform", 0.0, 100.0)] + [
        (shape, scale, level * (1 - scale))
        for scale in (0.1, 0.01)
        for shape, level in levels.items()
    ]
    parts = {
        f"seed{seed}": (
            {},
            [{"kind": "test"}, {"kind": "random", "scores": [1, 2 + seed]}]
            + [
                {"kind": "noise", "shape": shape, "scale": scale, "scores": [0, 2 * mean + seed]}
                for shape, scale, mean in points
            ],
        )
        for seed in (0, 1)
    }
    return write_run(path, {"experiment": "perturbation", "game": "Pong"}, parts)


def make_recognition(path: Path) -> RunDirectory:
    def segment(game: str, runs: list[list[int]]) -> dict[str, Any]:
        steps = sum(length for _, length in runs)
        labels = {"observed": runs, "decided": [[runs[-1][0], steps]]}
        return {"kind": "segment", "game": game, "steps": steps, "milliseconds": 0.125, **labels}

    rows = [
        segment("Pong", [[0, 100]]),
        segment("Boxing", [[0, 20], [1, 80]]),
        segment("Pong", [[1, 4], [0, 86], [2, 10]]),
    ]
    config = {"experiment": "recognition", "games": ["Pong", "Boxing"]}
    return write_run(path, config, {"seed0": ({}, rows)})


MAKE = {
    "learning-curves": make_learning_curves,
    "many-tasks": make_many_tasks,
    "strength": make_strength,
    "fisher-overlap": make_fisher_overlap,
    "schematic": make_schematic,
    "perturbation": make_perturbation,
    "recognition": make_recognition,
}


OPTIONS = {
    "train_samples": 120,
    "test_samples": 40,
    "layers": 1,
    "width": 8,
    "epochs": 2,
    "batch_size": 20,
    "lr": 0.01,
    "fisher_samples": 40,
    "segments": 2,
    "tasks": 2,
}
FLAGS = [
    text for name, value in OPTIONS.items() for text in (f"--{name.replace('_', '-')}", str(value))
]


def write_idx(file: Path, array: np.ndarray) -> None:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    content = header + array.astype(np.uint8).tobytes()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def write_data(directory: Path, *, train: int = 160, test: int = 40, suffix: str = "") -> Path:
    """Images whose class shows: a bright row of pixels, in noise."""
    random = np.random.default_rng(0)
    directory.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", train), ("t10k", test)):
        labels = random.integers(0, 10, count)
        images = random.integers(0, 128, (count, 28, 28))
        images[np.arange(count), 4 + 2 * labels] += 120
        write_idx(directory / f"{prefix}-images-idx3-ubyte{suffix}", images)
        write_idx(directory / f"{prefix}-labels-idx1-ubyte{suffix}", labels)
    return directory


STEPS = 4000


class Counter:
    """Counts for about ten seconds and reports every count, with a long row."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def progress(self) -> float:
        return self.count / STEPS

    def run(self) -> Iterator[dict[str, Any] | None]:
        while self.count < STEPS:
            time.sleep(0.0025)
            self.count += 1
            yield {"count": self.count, "text": "x" * 1000}

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Failing(Counter):
    """Counts to three, once a file is there, if one is named."""

    def __init__(self, after: str | None) -> None:
        super().__init__()
        self.after = after

    def run(self) -> Iterator[dict[str, Any] | None]:
        while self.after and not Path(self.after).exists():
            time.sleep(0.01)
        for row in super().run():
            if self.count == 3:
                raise RunError("three is too much")
            yield row


def make_counter(config: dict[str, Any]) -> Counter:
    return Counter()


def make_failing(config: dict[str, Any]) -> Counter:
    return Failing(config.get("after"))


class Short(Counter):
    """Counts to ten, in some pieces of an even length."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__()
        self.seconds = seconds

    @property
    def progress(self) -> float:
        return self.count / 10

    def run(self) -> Iterator[dict[str, Any] | None]:
        while self.count < 10:
            time.sleep(self.seconds)
            self.piece()
            self.count += 1
            yield {"count": self.count}

    def piece(self) -> None:
        """What is done before a count."""


class Dying(Short):
    """Logs every piece, and kills its process in the fifth as often as it is told."""

    def __init__(self, deaths: int, log: str) -> None:
        super().__init__()
        self.deaths = deaths
        self.log = Path(log)

    def piece(self) -> None:
        with open(self.log, "a") as file:
            file.write(f"{self.count + 1} ")
        if self.count == 4 and self.log.read_text().split().count("5") <= self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)


class Logged(Short):
    """Logs every piece with its label and the process that started its worker."""

    def __init__(self, log: str, label: str, seconds: float) -> None:
        super().__init__(seconds)
        self.log = Path(log)
        self.label = label

    def piece(self) -> None:
        with open(self.log, "a") as file:
            file.write(f"{self.label} {self.count + 1} {os.getppid()}\n")


def make_short(config: dict[str, Any]) -> Counter:
    return Short(**config)


def make_dying(config: dict[str, Any]) -> Counter:
    return Dying(**config)


def make_logged(config: dict[str, Any]) -> Counter:
    return Logged(**config)


class InlineEngine:
    """Counts the jobs that it was given; `before` is called before each, and may raise."""

    def __init__(self, before: Callable[[Job], None] = lambda job: None) -> None:
        self.before = before
        self.pieces: list[str] = []  # the job of every piece of work that was done

    def run(
        self, jobs: Sequence[Job], *, checkpoint_seconds: float
    ) -> Generator[Event, None, None]:
        for job in jobs:
            self.before(job)
            for event in run_job(job, stop=lambda: False, checkpoint_seconds=checkpoint_seconds):
                if isinstance(event, Report):
                    self.pieces.append(job.name)
                yield event


def run_through(resumable: Resumable, directory: RunDirectory, **given: Any) -> None:
    """Run something to its end, or to where `given` stops it."""
    for _ in run_resumable(resumable, directory, **given):
        pass


DIVERGED: dict[str, Any] = {"diverged": True}  # in a row, of which accuracies mean nothing


def as_text(table: Table) -> str:
    """Return a table as it is printed on a wide terminal."""
    console = Console(width=200, record=True)
    console.print(table)
    return console.export_text()


def cells(table: Table) -> list[str]:
    """Return all cells of a table, column by column."""
    return [str(cell) for column in table.columns for cell in column.cells]


def assert_only_diverged(table: Table, said: list[str]) -> None:
    """A network that diverged is named in these cells, and its accuracy of 9.8 % in none."""
    assert [cell for cell in cells(table) if "diverged" in cell] == said
    assert not any("9.8" in cell for cell in cells(table))


def assert_markers_are_whole(ax: "Axes") -> None:
    """No marker reaches over the top of the axes, where it would be cut."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    for line in ax.lines:
        radius = (line.get_markersize() + line.get_markeredgewidth()) / 2 * figure.dpi / 72
        tops = ax.transData.transform(line.get_xydata())[:, 1] + radius
        assert np.nanmax(tops) <= ax.bbox.y1 or not line.get_clip_on()
