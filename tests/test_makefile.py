"""The Makefile and `versions.sh`, with a Python that records its arguments and installs nothing.

The benchmarks need libraries that break the tests: avalanche installs a torchvision that does not
fit the CPU build of torch, and then transformers cannot be imported. So each has its own
environment.
"""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = (
    *("Makefile", "constraints.txt", "tests/versions.sh"),
    *("pyproject.toml", "src/ewc_paper/pyproject.toml"),
)
RECORDER = """#!/bin/sh
echo "$0 $*" >> calls
if [ "$1 $2" = "-m venv" ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; fi
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "recorder").write_text(RECORDER)
    (tmp_path / "recorder").chmod(0o755)
    return tmp_path


def make(clone: Path, *targets: str) -> list[str]:
    """Run make, and return all calls of Python, one line each."""
    (clone / "calls").write_text("")
    command = ["make", *targets, "PYTHON=./recorder"]
    subprocess.run(command, cwd=clone, check=True, capture_output=True, text=True)
    return (clone / "calls").read_text().splitlines()


def installed(calls: list[str]) -> list[tuple[str, str]]:
    """Return the environment and the requirement of every installation."""
    return [
        (call.split("/bin/")[0], requirement)
        for call in calls
        if " install " in call
        for requirement in re.findall(r"--editable (\S+)", call)
    ]


BENCH = [
    (".venv-bench", requirement)
    for requirement in (".", "src/ewc_paper", ".[bench]", "src/ewc_paper[atari]")
]
DEV = [
    (".venv", requirement)
    for requirement in (".", "src/ewc_paper", ".[dev]", "src/ewc_paper[cluster,games,tensorboard]")
]


def test_the_tests_after_the_benchmarks_have_an_environment_of_their_own(clone: Path) -> None:
    bench, test = make(clone, "bench"), make(clone, "test")
    assert installed(bench) == BENCH
    assert installed(test) == DEV
    assert bench[-1] == ".venv-bench/bin/python -m benchmarks"
    assert test[-1] == ".venv/bin/python -m pytest"


def test_the_benchmarks_after_the_tests_have_an_environment_of_their_own(clone: Path) -> None:
    assert installed(make(clone, "test")) == DEV
    assert installed(make(clone, "bench")) == BENCH
    assert make(clone, "test") == [".venv/bin/python -m pytest"]


def test_the_documentation_is_built_in_the_environment_of_the_tests(clone: Path) -> None:
    calls = make(clone, "docs")
    assert installed(calls)[-1] == (".venv", ".[docs]")
    assert calls[-1] == ".venv/bin/python -m mkdocs build --strict"


def test_one_part_of_the_benchmarks_can_be_asked_for(clone: Path) -> None:
    assert make(clone, "bench", "ONLY=step")[-1] == ".venv-bench/bin/python -m benchmarks step"


def test_clean_removes_both_environments_and_git_ignores_them(clone: Path) -> None:
    make(clone, "bench", "test")
    made = {path.name for path in clone.glob(".venv*")}
    assert made == {".venv", ".venv-bench"}
    make(clone, "clean")
    assert not list(clone.glob(".venv*"))
    assert {f"{name}/" for name in made} <= set((ROOT / ".gitignore").read_text().split())


def test_other_versions_are_tested_with_both_packages(clone: Path) -> None:
    command = ["tests/versions.sh", "./recorder", "2.15.0", "-x"]
    subprocess.run(command, cwd=clone, check=True)
    calls = (clone / "calls").read_text().splitlines()
    assert [requirement for _, requirement in installed(calls)] == [DEV[2][1], DEV[3][1]]
    assert any("torch==2.15.0" in call for call in calls)
    assert calls[-1].endswith("/bin/python -m pytest -x")
    (constraints,) = clone.glob(".venv-versions/*/constraints.txt")
    pinned = constraints.read_text()
    assert "\ntorch==" not in pinned
    assert "\nnumpy==" in pinned


def test_the_tests_require_nothing_that_is_there_for_the_benchmarks_only() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = {requirement for name in extras.keys() - {"bench"} for requirement in extras[name]}
    assert "avalanche-lib>=0.6" in extras["bench"]
    assert set(extras["bench"]) & needed == set()
    assert "ewc[bench]" not in needed
