"""Both wheels: built here, installed into empty environments, and used from another directory."""

import email
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def build(project: Path, directory: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT / "paper", tmp_path_factory.mktemp("paper"))


def contents(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def text_of(wheel: Path, name: str) -> str:
    (found,) = [file for file in contents(wheel) if file.endswith(f".dist-info/{name}")]
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(found).decode()


def required(wheel: Path) -> set[str]:
    """What is installed with a wheel if no extra is asked for."""
    lines = email.message_from_string(text_of(wheel, "METADATA")).get_all("Requires-Dist") or []
    names = [re.match(r"[\w.-]+", line) for line in lines if "extra ==" not in line]
    return {name.group() for name in names if name}


def install(wheels: Sequence[Path], place: Path) -> Path:
    """A new environment with these wheels; what they require is read from the running one."""
    venv.create(place, with_pip=False, symlinks=True)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index"]
    quiet = ["--no-deps", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *quiet, *map(str, wheels)], check=True, env=clean_environment())
    (packages,) = place.glob("lib/python*/site-packages")
    # Searched after the wheels, and without its own .pth files: no editable install is seen.
    (packages / "required.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "bin"


def clean_environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}


def output(command: Sequence[str | Path], directory: Path) -> str:
    done = subprocess.run(
        command, cwd=directory, env=clean_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_library_is_small_and_alone(library: Path) -> None:
    assert library.stat().st_size < 250_000
    assert {name.split("/")[0] for name in contents(library)} == {"ewc", dist_info(library)}
    assert "ewc/py.typed" in contents(library)
    assert required(library) == {"torch", "numpy", "safetensors"}


def test_the_paper_has_its_data_and_the_command(paper: Path) -> None:
    assert {name.split("/")[0] for name in contents(paper)} == {"ewc_paper", dist_info(paper)}
    data = [name for name in contents(paper) if name.startswith("ewc_paper/mnist/data/")]
    assert sum(name.endswith("-ubyte.gz") for name in data) == 4
    assert "ewc_paper/games/data/minatar_scores.json" in contents(paper)
    page = [name for name in contents(paper) if name.startswith("ewc_paper/page/assets/")]
    assert len(page) == 8  # the style, three scripts, and two libraries with their licenses
    assert "ewc = ewc_paper.cli:main" in text_of(paper, "entry_points.txt")
    assert {"ewc", "torch", "matplotlib", "rich"} <= required(paper)


@pytest.mark.parametrize("package", ["ewc", "ewc_paper"])
def test_every_module_is_there(package: str, request: pytest.FixtureRequest) -> None:
    wheel = request.getfixturevalue("library" if package == "ewc" else "paper")
    source = ROOT / "src" if package == "ewc" else ROOT / "paper" / "src"
    expected = {str(file.relative_to(source)) for file in (source / package).rglob("*.py")}
    assert {name for name in contents(wheel) if name.endswith(".py")} == expected
    assert not [name for name in contents(wheel) if "__pycache__" in name]


def dist_info(wheel: Path) -> str:
    return "-".join(wheel.name.split("-")[:2]) + ".dist-info"


def test_the_library_works_without_the_paper(library: Path, tmp_path: Path) -> None:
    """The README's example, on random images in place of MNIST, which is the paper's."""
    python = install([library], tmp_path / "environment") / "python"
    example = re.findall(r"```python\n(import.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[
        0
    ]
    lines = example.replace("from ewc_paper.mnist.data import load\n", RANDOM_IMAGES)
    assert "ewc_paper" not in lines
    (tmp_path / "example.py").write_text(lines + WHERE)
    *accuracies, where = output([python, "example.py"], tmp_path).splitlines()
    assert [line.partition(":")[0] for line in accuracies] == ["task A", "task B"]
    assert where == f"{tmp_path / 'environment'} False"


RANDOM_IMAGES = """
from types import SimpleNamespace

def load():
    split = SimpleNamespace(images=torch.rand(640, 784), labels=torch.randint(10, (640,)))
    return SimpleNamespace(train=split, test=split)

"""
WHERE = """
import importlib.util, sys
assert ewc.__file__.startswith(sys.prefix), ewc.__file__
print(sys.prefix, importlib.util.find_spec("ewc_paper") is not None)
"""


def test_the_command_runs_an_experiment(library: Path, paper: Path, tmp_path: Path) -> None:
    commands = install([library, paper], tmp_path / "environment")
    assert output([commands / "ewc", "list"], tmp_path).startswith("schematic ")
    tiny = ["--samples", "50", "--gradient-steps", "10", "--grid", "5"]
    shown = output([commands / "ewc", "run", "schematic", *tiny, "--out", "run"], tmp_path)
    assert "figure: run/figures/schematic.png" in shown
    assert shown.endswith("page: run/report.html\n")
    program = """
import ewc_paper, sys
from ewc_paper.mnist.data import load
assert ewc_paper.__file__.startswith(sys.prefix), ewc_paper.__file__
print(len(load().train))
"""
    assert output([commands / "python", "-c", program], tmp_path) == "60000\n"
