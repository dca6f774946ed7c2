"""Panel C of the paper's figure on Atari: the score over the size of noise, a line a shape."""

from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.table import Table

from ewc_paper.figures.names import game_name, in_order
from ewc_paper.figures.seeds import mean_and_spread, plot_band
from ewc_paper.figures.style import axes, points, save
from ewc_paper.runs.directory import RunDirectory

SHAPES = {
    "uniform": "uniform",
    "inverse-fisher": "inverse Fisher",
    "nullspace": "null space of the Fisher",
}
Scores = dict[str, dict[float, list[float]]]  # by shape, by size: one mean score a seed


def scores(run: RunDirectory) -> tuple[list[float], Scores]:
    """The mean score of each seed without noise, and with noise of each shape and size."""
    quiet: list[float] = []
    noisy: Scores = defaultdict(lambda: defaultdict(list))
    for part in run.parts():
        for row in part.rows():
            if row["kind"] == "noise":
                mean = float(np.mean(row["scores"]))
                (noisy[row["shape"]][row["scale"]] if row["scale"] else quiet).append(mean)
    found = {shape: dict(sorted(sizes.items())) for shape, sizes in noisy.items()}
    return quiet, in_order(found, run.config().get("shapes", SHAPES))


def draw(run: RunDirectory) -> list[Path]:
    """Draw the run's figure from its metrics."""
    ax = axes()
    quiet, noisy = scores(run)
    for shape, sizes in noisy.items():
        seeds = min(len(values) for values in sizes.values())
        values = [[of_seeds[seed] for of_seeds in sizes.values()] for seed in range(seeds)]
        plot_band(ax, list(sizes), values, label=SHAPES[shape], **points(shape))
    if quiet:
        ax.axhline(
            float(np.mean(quiet)), color="0.6", linestyle="--", linewidth=1, label="no noise"
        )
    ax.set_xscale("log")
    ax.set_xlabel("size of the noise (root mean square over the weights)")
    ax.set_ylabel(f"score in {game_name(run.config()['game'])}")
    ax.legend(frameon=False)
    return [save(ax, run.figures / "perturbation.png")]


def table(run: RunDirectory) -> Table:
    """The scores, a row a size."""
    quiet, noisy = scores(run)
    table = Table("noise", title=f"score in {game_name(run.config()['game'])}")
    for shape in noisy:
        table.add_column(SHAPES[shape], justify="right")
    if quiet:
        table.add_row("0", *[mean_and_spread(quiet)] * len(noisy))
    for size in sorted({size for sizes in noisy.values() for size in sizes}):
        cells = [mean_and_spread(sizes[size]) if size in sizes else "" for sizes in noisy.values()]
        table.add_row(f"{size:g}", *cells)
    return table
