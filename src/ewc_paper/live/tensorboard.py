"""TensorBoard events of a run; needs the extra `tensorboard`."""

from pathlib import Path

from ewc_paper.errors import RunError
from ewc_paper.figures.names import game_name, task_name
from ewc_paper.runs.directory import MetricsRow
from ewc_paper.runs.engine import Report


def check_installed() -> None:
    """Raise RunError if the extra is not installed."""
    try:
        import torch.utils.tensorboard.writer  # noqa: F401
    except ImportError:
        raise RunError(
            "--tensorboard needs an extra: pip install 'ewc-paper[tensorboard]'"
        ) from None


class Events:
    """Writes the losses, accuracies and scores of every report into a directory."""

    def __init__(self, directory: Path) -> None:
        check_installed()
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer = SummaryWriter(str(directory))

    def __call__(self, report: Report) -> None:
        row = report.row or {}
        step = row.get("gradient_steps", row.get("step"))
        for name, value in _scalars(row).items():
            self.writer.add_scalar(f"{report.part}/{name}", value, step)
        self.writer.flush()


def _scalars(row: MetricsRow) -> dict[str, float]:
    accuracies = {
        f"accuracy_{task_name(task)}": value for task, value in enumerate(row.get("accuracy", []))
    }
    scores = {
        f"normalized_{game_name(game)}": value for game, value in row.get("normalized", {}).items()
    }
    single = {name: row[name] for name in ("loss", "score") if row.get(name) is not None}
    return accuracies | scores | single


class NoEvents:
    """Takes reports and writes nothing, if TensorBoard was not asked for."""

    def __call__(self, report: Report) -> None:
        pass
