"""Small run directories of each experiment, written by hand."""

from pathlib import Path
from typing import Any

from ewc_paper.runs.directory import RunDirectory


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
