"""Imports go one way, down to the algorithm, which needs torch and numpy alone."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "ewc"

ALGORITHM = {"importance", "memory", "pull", "step", "recognition", "perturbation"}
ALGORITHM |= {"seeding", "selection", "state", "warnings", "watch", "wells"}  # helpers of the above
WORLDS = {"supervised", "rl"}

# What each room may import of this package, besides itself.
ALLOWED = {
    "__init__": ALGORITHM,
    **dict.fromkeys(ALGORITHM | WORLDS, ALGORITHM),
    "runs": ALGORITHM | WORLDS,
    "experiments": ALGORITHM | WORLDS | {"runs"},
    "report": ALGORITHM | {"runs"},
    "__main__": {"cli"},
    "terminal": set(),
    "cli": ALGORITHM | WORLDS | {"runs", "experiments", "report", "terminal"},
}
FILES = sorted(ROOT.rglob("*.py"))


def room(file: Path) -> str:
    return file.relative_to(ROOT).with_suffix("").parts[0]


def imported(file: Path) -> Iterator[str]:
    """The absolute dotted names that a file imports, at its top or within a function."""
    package = ("ewc", *file.relative_to(ROOT).parts[:-1])
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_room_imports_only_from_below(file: Path) -> None:
    assert room(file) in ALLOWED, f"{room(file)} is in no layer: add it to the table above"
    rooms = {name.split(".")[1] for name in imported(file) if name.startswith("ewc.")}
    beyond = (rooms & ALLOWED.keys()) - ALLOWED[room(file)] - {room(file)}
    assert not beyond, f"{file.relative_to(ROOT)} imports {beyond}, which lie above or beside it"


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if room(file) in ALGORITHM],
    ids=lambda file: str(file.relative_to(ROOT)),
)
def test_the_algorithm_needs_torch_and_numpy_alone(file: Path) -> None:
    roots = {name.split(".")[0] for name in imported(file)}
    assert roots <= sys.stdlib_module_names | {"ewc", "torch", "numpy"}
