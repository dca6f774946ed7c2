"""The results of `benchmarks.methods` and `.budget`: a line of JSON for each trained network."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypedDict

from ewc_paper.runs.files import replace_file


@dataclass(frozen=True)
class Cell:
    """One network: how it is trained, and on what it is measured.

    Attributes:
        method: a key of `METHODS`.
        strength: λ of the memory.
        seed: of the permutations, the first weights and the order of the images.
        tasks: number of tasks.
        epochs: epochs per task.
        images: training images.
        held_out: measure on training images that are held out, not on the test images.
        optimizer: a key of `OPTIMIZERS`.
        budget: of the memory, in place of the strength, in nats or "auto"; 0 if there is none.
    """

    method: str = ""
    strength: float = 0.0
    seed: int = 0
    tasks: int = 10
    epochs: int = 1
    images: int = 55_000
    held_out: bool = False
    optimizer: str = "adam"
    budget: float | Literal["auto"] = 0.0


class CellRow(TypedDict):
    """The result of one cell: accuracies after the last task, and of each task when learned."""

    cell: Cell
    accuracy: list[float]
    learned: list[float]
    seconds: float


def read_rows(file: Path) -> dict[Cell, CellRow]:
    """Return the rows of a file, none if it does not exist.

    A last line that was cut short by a stop is removed from the file.
    """
    if not file.exists():
        return {}
    lines = file.read_bytes().split(b"\n")
    if lines.pop():
        replace_file(file, b"".join(line + b"\n" for line in lines))
    rows: dict[Cell, CellRow] = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            cell = Cell(**row["cell"])
            rows[cell] = CellRow(
                cell=cell,
                accuracy=row["accuracy"],
                learned=row["learned"],
                seconds=row["seconds"],
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{file}, line {number}: expected a result, got {line!r}") from error
    return rows


def append_row(file: Path, row: CellRow) -> None:
    """Add a row to the file, and make sure that it is on the disk."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**row, "cell": asdict(row["cell"])}) + "\n"
    with file.open("ab") as out:
        out.write(text.encode())
        out.flush()
        os.fsync(out.fileno())
