"""The README's example is the one in examples/, runs as printed there, and remembers."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "two_tasks.py"


def readme_example() -> str:
    return re.findall(r"```python\n(import.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]


def test_the_readme_prints_the_example_file() -> None:
    _, _, code = EXAMPLE.read_text().partition('"""\n\n')
    assert readme_example() == code


def test_the_start_page_prints_the_example_file_too() -> None:
    assert readme_example() in (ROOT / "docs" / "index.md").read_text()


def accuracies(script: Path, capsys: pytest.CaptureFixture[str]) -> list[float]:
    torch.manual_seed(0)
    runpy.run_path(str(script))
    printed = capsys.readouterr().out
    return [float(percent) for percent in re.findall(r"accuracy ([\d.]+)%", printed)]


def test_the_readme_example_remembers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "example.py"
    script.write_text(readme_example())
    a, b = accuracies(script, capsys)
    script.write_text(readme_example().replace("memory.attach(optimizer)", "pass"))
    with pytest.warns(UserWarning, match="moved"):
        forgotten_a, _ = accuracies(script, capsys)
    assert a > 93
    assert b > 93
    assert forgotten_a < a - 3


def test_the_schematic_example_draws_a_figure(tmp_path: Path) -> None:
    script = ROOT / "examples" / "schematic.py"
    subprocess.run([sys.executable, script], cwd=tmp_path, check=True, timeout=120)
    assert (tmp_path / "schematic.png").stat().st_size > 10_000


def test_the_language_model_example_starts_at_fine_tuning_the_second_time(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "examples" / "finetune_lm.py", "--quick"]
    command += ["--folder", tmp_path / "pretrained"]
    first, second = (
        subprocess.run(command, cwd=tmp_path, check=True, timeout=300, capture_output=True).stdout
        for _ in range(2)
    )
    assert (first.count(b"train_runtime"), second.count(b"train_runtime")) == (4, 3)
    table = first.decode().partition("loss (perplexity) on")[2]
    assert table == second.decode().partition("loss (perplexity) on")[2]
    losses = [float(loss) for loss in re.findall(r"(\d+\.\d+) \(", table)]
    untrained, before, *tuned = losses[1::2]  # on the new text
    assert len(tuned) == 3
    assert max(tuned) < before < untrained
