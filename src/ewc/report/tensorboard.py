"""TensorBoard events of a run while it goes on; needs the extra `tensorboard`."""

from pathlib import Path

from ewc.runs.engine import Report
from ewc.runs.errors import RunError

from .names import task_name


class Events:
    """Writes the loss and the accuracies of every report under the run directory."""

    def __init__(self, directory: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise RunError("--tensorboard needs an extra: pip install 'ewc[tensorboard]'") from None
        self.writer = SummaryWriter(str(directory))

    def __call__(self, report: Report) -> None:
        row = report.row or {}
        for task, value in enumerate(row.get("accuracy", [])):
            name = f"{report.part}/accuracy_{task_name(task)}"
            self.writer.add_scalar(name, value, row["gradient_steps"])
        if row.get("loss") is not None:
            self.writer.add_scalar(f"{report.part}/loss", row["loss"], row["gradient_steps"])
        self.writer.flush()


class NoEvents:
    """Writes nothing."""

    def __call__(self, report: Report) -> None:
        pass
