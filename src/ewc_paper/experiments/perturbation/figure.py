"""Panel C of the paper's figure on Atari: the score over the size of noise, one line per shape."""

from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.table import Table

from ewc_paper.experiments.view import Layout, StoredConfig
from ewc_paper.figures.names import game_name, in_order
from ewc_paper.figures.seeds import mean_and_deviation, plot_band
from ewc_paper.figures.style import axes, marker_style, save
from ewc_paper.runs.directory import RunDirectory
from ewc_paper.runs.schema import Check, list_of, number, one_of, record, short_text, variants

SHAPE_LABELS = {
    "uniform": "uniform",
    "inverse-fisher": "inverse Fisher",
    "nullspace": "null space of the Fisher",
}


def _row(run: StoredConfig, part: StoredConfig) -> Check:
    noise = record(shape=one_of(SHAPE_LABELS), scale=number(0), scores=list_of(number(), 1))
    return variants("kind", noise=noise, random=record(scores=list_of(number(), 1)))


LAYOUT = Layout(_row, config=record(game=short_text))

Scores = dict[str, dict[float, list[float]]]  # by shape, by size: one mean score per seed


def scores(run: RunDirectory) -> tuple[list[float], Scores]:
    """Return the mean score of each seed without noise, and with noise of each shape and size."""
    without_noise: list[float] = []
    with_noise: Scores = defaultdict(lambda: defaultdict(list))
    for part in run.parts():
        for row in part.rows():
            if row["kind"] == "noise":
                mean = float(np.mean(row["scores"]))
                shape, size = row["shape"], row["scale"]
                (with_noise[shape][size] if size else without_noise).append(mean)
    by_size = {shape: dict(sorted(sizes.items())) for shape, sizes in with_noise.items()}
    return without_noise, in_order(by_size, run.config().get("shapes", SHAPE_LABELS))


def random_scores(run: RunDirectory) -> list[float]:
    """Return the mean score of each seed's random player; runs of older versions have none."""
    rows = [row for part in run.parts() for row in part.rows() if row["kind"] == "random"]
    return [float(np.mean(row["scores"])) for row in rows]


def draw(run: RunDirectory) -> list[Path]:
    """Draw the run's figure from its metrics."""
    ax = axes()
    without_noise, with_noise = scores(run)
    for shape, sizes in with_noise.items():
        seeds = min(len(values) for values in sizes.values())
        values = [[of_seeds[seed] for of_seeds in sizes.values()] for seed in range(seeds)]
        plot_band(ax, list(sizes), values, label=SHAPE_LABELS[shape], **marker_style(shape))
    if without_noise:
        mean = float(np.mean(without_noise))
        ax.axhline(mean, color="0.6", linestyle="--", linewidth=1, label="no noise")
    if random := random_scores(run):
        mean = float(np.mean(random))
        ax.axhline(mean, color="0.6", linestyle=":", linewidth=1, label="random player")
    ax.set_xscale("log")
    ax.set_xlabel("size of the noise (root mean square over the weights)")
    ax.set_ylabel(f"score in {game_name(run.config()['game'])}")
    ax.legend(frameon=False)
    return [save(ax, run.figures / "perturbation.png")]


def table(run: RunDirectory) -> Table:
    """The scores, one row per size of the noise."""
    without_noise, with_noise = scores(run)
    table = Table("noise", title=f"score in {game_name(run.config()['game'])}")
    for shape in with_noise:
        table.add_column(SHAPE_LABELS[shape], justify="right")
    if without_noise:
        table.add_row("0", *[mean_and_deviation(without_noise)] * len(with_noise))
    if random := random_scores(run):
        table.add_row("random player", *[mean_and_deviation(random)] * len(with_noise))
    for size in sorted({size for sizes in with_noise.values() for size in sizes}):
        cells = [
            mean_and_deviation(sizes[size]) if size in sizes else ""
            for sizes in with_noise.values()
        ]
        table.add_row(f"{size:g}", *cells)
    return table
