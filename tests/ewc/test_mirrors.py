"""Every module of the library has a test file of its own, at the same place in the tree."""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parents[1] / "src" / "ewc"
MODULES = sorted(
    str(file.relative_to(SOURCE)) for file in SOURCE.rglob("*.py") if file.name != "__init__.py"
)


@pytest.mark.parametrize("module", MODULES)
def test_the_module_has_a_mirror(module: str) -> None:
    mirror = (TESTS / module).with_name(f"test_{Path(module).name}")
    assert mirror.exists()
