"""Panel C of the paper's figure on Atari: the score over the size of noise, one line per shape."""

from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.table import Table

from ewc_paper.experiments.view import Layout, Paper, StoredConfig, seed_name
from ewc_paper.figures.names import game_name, in_order
from ewc_paper.figures.panel import Figure, Level, Panel, Series, by_seed
from ewc_paper.figures.plot import plot_panel
from ewc_paper.figures.seeds import mean_and_deviation
from ewc_paper.figures.style import DASHED, DOTTED, LOOKS, Look, axes, save
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

PAPER = Paper(
    "the figure on Atari, panel C",
    "A network trained on Breakout plays with noise on its weights, drawn again at every step. "
    "Noise of the same size on all weights destroys its score. Noise shaped by the inverse of the "
    "diagonal Fisher hurts far less, so the Fisher does tell which weights matter. Noise confined "
    "to the null space of the Fisher hurts about as much as inverse-Fisher noise: weights that the "
    "Fisher believes unimportant are not.",
    "The score over the size of the noise, on a logarithmic axis, one line per shape. The line of "
    "uniform noise falls first; those of inverse-Fisher and null-space noise fall later, close "
    "together.",
)

Scores = dict[str, dict[float, dict[str, float]]]  # by shape, size and seed: a mean score


def scores(run: RunDirectory) -> tuple[list[float], Scores]:
    """Return the mean score of each seed without noise, and with noise of each shape and size."""
    without_noise: list[float] = []
    with_noise: Scores = defaultdict(lambda: defaultdict(dict))
    for part in run.parts():
        for row in part.rows():
            if row["kind"] == "noise":
                mean = float(np.mean(row["scores"]))
                if row["scale"]:
                    with_noise[row["shape"]][row["scale"]][seed_name(part)] = mean
                else:
                    without_noise.append(mean)
    by_size = {shape: dict(sorted(sizes.items())) for shape, sizes in with_noise.items()}
    return without_noise, in_order(by_size, run.config().get("shapes", SHAPE_LABELS))


def random_scores(run: RunDirectory) -> list[float]:
    """Return the mean score of each seed's random player; runs of older versions have none."""
    rows = [row for part in run.parts() for row in part.rows() if row["kind"] == "random"]
    return [float(np.mean(row["scores"])) for row in rows]


def figures(run: RunDirectory) -> list[Figure]:
    """Return the score over the size of the noise, one line per shape."""
    without_noise, with_noise = scores(run)
    game = game_name(run.config()["game"])
    references = {
        "no noise": (without_noise, DASHED),
        "random player": (random_scores(run), DOTTED),
    }
    panel = Panel(
        "size of the noise (root mean square over the weights)",
        f"score in {game}",
        series=[
            Series(SHAPE_LABELS[shape], LOOKS[shape], list(sizes), by_seed(sizes), "all")
            for shape, sizes in with_noise.items()
        ],
        levels=[
            Level(label, Look("#999999", line, "", 1.0), float(np.mean(values)))
            for label, (values, line) in references.items()
            if values
        ],
        x_log=True,
    )
    title = f"Score in {game} with noise on the weights"
    caption = "One line per shape of the noise; all shapes have the same size at the same x."
    return [Figure("perturbation", title, caption, [panel])]


def draw(run: RunDirectory, kind: str = "png") -> list[Path]:
    """Draw the run's figure from its metrics."""
    (figure,) = figures(run)
    ax = plot_panel(axes(), figure.panels[0])
    ax.legend(frameon=False)
    return [save(ax, run.figures / f"{figure.name}.{kind}")]


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
            mean_and_deviation([*sizes[size].values()]) if size in sizes else ""
            for sizes in with_noise.values()
        ]
        table.add_row(f"{size:g}", *cells)
    return table
