"""`import ewc` is light: torch and numpy, and little else."""

import json
import subprocess
import sys

import pytest

# Packages that torch may or may not import itself; what counts is what `ewc` adds.
PROGRAM = """
import json, sys, time
import torch
before = set(sys.modules)
start = time.process_time()
import ewc
spent = time.process_time() - start
added = sorted({name.partition(".")[0] for name in set(sys.modules) - before})
print(json.dumps([spent, added]))
"""


@pytest.fixture(scope="module")
def imports() -> list[tuple[float, list[str]]]:
    """CPU seconds and new root modules of `import ewc` after `import torch`, several times."""
    command = [sys.executable, "-c", PROGRAM]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(8)]
    return [json.loads(run.stdout) for run in runs]


def test_it_imports_nothing_heavy_beyond_torch_and_numpy(
    imports: list[tuple[float, list[str]]],
) -> None:
    _, added = imports[0]
    assert set(added) <= sys.stdlib_module_names | {"ewc", "numpy", "safetensors"}


def test_it_takes_less_than_a_fifth_of_a_second(imports: list[tuple[float, list[str]]]) -> None:
    assert min(spent for spent, _ in imports) < 0.2
