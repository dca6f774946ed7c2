"""The command of the long mode: a few programs of each, in processes of their own."""

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_a_few_programs_of_each() -> None:
    counts = ["--models", "4", "--factors", "4", "--memory", "4"]
    command = [sys.executable, "-m", "fuzz", *counts, "--processes", "2"]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, timeout=120)
    assert "4 models, 4 with factors and 4 memory programs from seed 0: 0 failed" in done.stdout
    assert done.returncode == 0
