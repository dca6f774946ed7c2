"""Counts what makes a tree easy or hard to read: `python tools/house.py [ROOT]`.

Modules (without `__init__`), small ones, ones with a single importer, files at the root of each
package, lines of source and of tests; for two walks through the library, how many modules they
touch and how often they change file; and how many modules of both packages a short
`ewc run games --preset quick` calls, its workers included.
"""

import argparse
import ast
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

PACKAGES = ("ewc", "ewc_paper")
SMALL = 60  # lines

CONSOLIDATE = """
import torch, ewc
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
memory = ewc.EWC(model, strength=1.0)
memory.attach(optimizer)
batches = [(torch.randn(8, 4), torch.randint(3, (8,)))]
"""
WALKS = {
    "consolidate": "memory.consolidate(batches)",
    "step": """
memory.consolidate(batches)
model(batches[0][0]).sum().backward()
optimizer.step()
WATCH
optimizer.step()
""",
}


# All that the preset does, in fewer steps.
GAMES = [
    *("run", "games", "--preset", "quick", "--arms", "ewc-gates-fmn", "--segment-steps", "1200"),
    *("--test-episodes", "1", "--table-episodes", "1", "--workers", "1"),
]
# Python runs this at the start of the command and of each of its workers.
NOTE_FILES = """
import os, sys, threading
seen = set()
def note(frame, event, argument):
    name = frame.f_code.co_filename
    if event == "call" and name not in seen:
        seen.add(name)
        if "/ewc/" in name or "/ewc_paper/" in name:
            with open(os.environ["NOTES"], "a") as file:
                file.write(name + "\\n")
sys.setprofile(note)
threading.setprofile(note)
"""


def source_folder(root: Path, package: str) -> Path:
    """Return where the source of a package is, in any layout."""
    return next(f.parent for f in root.glob(f"**/{package}/__init__.py") if "src" in f.parts)


def modules(folder: Path) -> dict[str, Path]:
    """Return all modules of a package, by name, without `__init__`."""
    return {
        ".".join((folder.name, *file.relative_to(folder).with_suffix("").parts)): file
        for file in sorted(folder.rglob("*.py"))
        if file.stem not in ("__init__", "__main__")
    }


def importers(by_name: dict[str, Path]) -> dict[str, set[Path]]:
    """Return, for each module, the modules of its package that import it."""
    users: dict[str, set[Path]] = defaultdict(set)
    for file in by_name.values():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                    if name in by_name and by_name[name] != file:
                        users[name].add(file)
    return users


def count(root: Path, package: str) -> dict[str, int]:
    """Return the counts of a package and of its tests."""
    folder = source_folder(root, package)
    by_name = modules(folder)
    users = importers(by_name)
    sizes = {name: len(file.read_text().splitlines()) for name, file in by_name.items()}
    tests = sum(
        len(file.read_text().splitlines()) for file in (root / "tests" / package).rglob("*.py")
    )
    return {
        "modules": len(by_name),
        f"modules of at most {SMALL} lines": sum(size <= SMALL for size in sizes.values()),
        "modules with one importer": sum(len(users[name]) == 1 for name in by_name),
        "files at the root": len(list(folder.glob("*.py"))),
        "lines of source": sum(sizes.values()),
        f"lines in tests/{package}": tests,
    }


def count_all(root: Path) -> dict[str, float]:
    """Return the lines of source, of both packages and the benchmarks, and those of all tests."""
    folders = [*(source_folder(root, package) for package in PACKAGES), root / "benchmarks"]
    source, tests = (
        sum(len(f.read_text().splitlines()) for folder in group for f in folder.rglob("*.py"))
        for group in (folders, [root / "tests"])
    )
    return {
        "lines of source": source,
        "lines of tests": tests,
        "tests per line of source": round(tests / source, 2),
    }


def walk(root: Path, name: str) -> tuple[int, int]:
    """Return how many modules of `ewc` a walk touches, and how often it changes file."""
    folder = source_folder(root, "ewc")
    program = f"""
import sys
{CONSOLIDATE}
files, folder = [], {str(folder)!r}
def note(frame, event, argument):
    if event in ("call", "return") and frame.f_code.co_filename.startswith(folder):
        if not files or files[-1] != frame.f_code.co_filename:
            files.append(frame.f_code.co_filename)
def begin():
    files.clear()
    sys.setprofile(note)
{"" if "WATCH" in WALKS[name] else "begin()"}
{WALKS[name].replace("WATCH", "begin()")}
sys.setprofile(None)
print(len(set(files)), len(files) - 1)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(folder.parent), "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=True,
    )
    touched, changes = map(int, done.stdout.split())
    return touched, changes


def called_by_games(root: Path) -> int:
    """Return how many modules of both packages the command calls, imports of modules included."""
    sources = [str(source_folder(root, package).parent) for package in PACKAGES]
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "sitecustomize.py").write_text(NOTE_FILES)
        notes = Path(place) / "notes"
        subprocess.run(
            [sys.executable, "-m", "ewc_paper", *GAMES, "--out", f"{place}/run"],
            env={"PYTHONPATH": ":".join([place, *sources]), "NOTES": str(notes), "PATH": ""},
            capture_output=True,
            check=True,
        )
        files = {Path(line) for line in notes.read_text().splitlines()}
    return sum(file.stem not in ("__init__", "__main__") for file in files)


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, nargs="?", default=Path(__file__).parents[1])
    root = parser.parse_args().root.resolve()
    for package in PACKAGES:
        print(package)
        for what, number in count(root, package).items():
            print(f"  {what:34}{number:>7,}")
    print("all, with the benchmarks")
    for what, amount in count_all(root).items():
        print(f"  {what:34}{amount:>7,}")
    print("walks")
    for name in WALKS:
        touched, changes = walk(root, name)
        print(f"  {name:34}{touched:>7} modules, {changes} changes of file")
    print(f"  {'ewc run games --preset quick':34}{called_by_games(root):>7} modules")


if __name__ == "__main__":
    main()
