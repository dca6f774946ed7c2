"""Imports go one way: the paper imports the library, never the reverse; in each, downwards only."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {"ewc": ROOT / "src", "ewc_paper": ROOT / "paper" / "src"}

# The layers of each package, from the lowest to the highest, with the folders and files in each.
# What is in a layer imports from its own layer and from those before it.
LAYERS = {
    "ewc": (
        ("version", "parameters", "diagnostics", "distributed"),
        ("fisher",),
        ("curvature",),
        ("strength", "step_size", "pull"),
        ("storage", "memory"),
        ("checkpoint", "recognition", "perturbation", "importances", "integrations"),
        ("__init__",),
    ),
    "ewc_paper": (
        ("__init__", "errors", "seeding", "device", "terminal", "options"),
        ("runs",),
        ("mnist", "games"),
        ("figures",),
        ("experiments",),
        ("sweeps",),
        ("page",),
        ("cli", "__main__"),
    ),
}
FILES = sorted(file for name, top in SOURCES.items() for file in (top / name).rglob("*.py"))


def room(file: Path) -> tuple[str, str]:
    """The package of a file, and its room there."""
    package, first, *_ = PurePath(place(file)).with_suffix("").parts
    return package, first


def imported(file: Path) -> Iterator[str]:
    """The absolute dotted names that a file imports, at its top or within a function."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import: write it in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def place(file: Path) -> str:
    source = next(source for source in SOURCES.values() if source in file.parents)
    return str(file.relative_to(source))


@pytest.mark.parametrize("file", FILES, ids=place)
def test_a_layer_imports_only_from_below(file: Path) -> None:
    package, own = room(file)
    layers = LAYERS[package]
    depth = next((n for n, rooms in enumerate(layers) if own in rooms), None)
    assert depth is not None, f"{own} has no place in {package}: add it to the table above"
    used = {name.split(".")[1] for name in imported(file) if name.startswith(f"{package}.")}
    beyond = used & {name for rooms in layers[depth + 1 :] for name in rooms}
    assert not beyond, f"{place(file)} imports {beyond}, which lie above it"


@pytest.mark.parametrize("file", [file for file in FILES if room(file)[0] == "ewc"], ids=place)
def test_the_library_needs_torch_and_numpy_alone(file: Path) -> None:
    roots = {name.split(".")[0] for name in imported(file)}
    if file.parent.name == "integrations":
        roots -= {file.stem.partition("_")[0]}  # each file there is for one library, named first
    assert roots <= sys.stdlib_module_names | {"ewc", "torch", "numpy", "safetensors"}


def test_nothing_imports_the_integrations() -> None:
    for file in FILES:
        inside = file.parent.name == "integrations"
        assert inside or not any(name.startswith("ewc.integrations") for name in imported(file))
