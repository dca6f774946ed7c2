"""Tests mirror the source tree: every module has a test file of its own.

The tests of `src/ewc_paper/games/agent.py` are in `tests/ewc_paper/games/test_agent.py`, those of a
package's `__init__.py` in `test_init.py`. A module without any function or method needs none.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("ewc", "ewc_paper")


def has_code(file: Path) -> bool:
    """Whether a module defines a function or a method."""
    tree = ast.parse(file.read_text())
    return any(isinstance(node, ast.FunctionDef) for node in ast.walk(tree))


def mirror(file: Path) -> Path:
    """Return where the tests of a module are."""
    place = file.relative_to(ROOT / "src")
    name = place.stem.strip("_")
    return ROOT / "tests" / place.parent / f"test_{name}.py"


MODULES = sorted(
    file for name in PACKAGES for file in (ROOT / "src" / name).rglob("*.py") if has_code(file)
)


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(ROOT / "src")))
def test_a_module_has_its_test_file(file: Path) -> None:
    assert mirror(file).is_file(), f"{mirror(file).relative_to(ROOT)} is missing"


def test_the_mirror_of_a_module() -> None:
    source = ROOT / "src" / "ewc_paper"
    assert mirror(source / "games" / "agent.py").parts[-3:] == (
        "ewc_paper",
        "games",
        "test_agent.py",
    )
    assert mirror(source / "games" / "__init__.py").name == "test_init.py"
