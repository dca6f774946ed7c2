"""`import ewc` is light, and every public name has an example that runs."""

import doctest
import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import ewc

# Packages that torch may or may not import itself; what counts is what `ewc` adds.
PROGRAM = """
import gc, json, sys, time
import torch
gc.freeze()  # a full collection of torch's objects may fall into any import; it is not ours
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


MODULES = sorted(["ewc", *(module.name for module in pkgutil.walk_packages(ewc.__path__, "ewc."))])
FINDER = doctest.DocTestFinder(exclude_empty=True)


def examples() -> list[doctest.DocTest]:
    """The doctests of all modules, each with at least one example."""
    tests = [
        test
        for name in MODULES
        for test in FINDER.find(importlib.import_module(name), name)
        if test.examples
    ]
    return sorted(tests, key=lambda test: test.name)


def public() -> list[str]:
    """The names that users call: those of the package, and the methods of its classes."""
    names = []
    for name in ewc.__all__:
        value = getattr(ewc, name)
        names.append(name)
        if inspect.isclass(value) and not issubclass(value, Warning):
            methods = inspect.getmembers(value, inspect.isfunction)
            names += [f"{name}.{method}" for method, _ in methods if not method.startswith("_")]
    return names


@pytest.mark.parametrize("test", examples(), ids=lambda test: test.name)
def test_the_examples_run(
    test: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    result = runner.run(test)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", public())
def test_every_public_name_has_an_example(name: str) -> None:
    value = ewc
    for part in name.split("."):
        value = getattr(value, part)
    assert ">>> " in (inspect.getdoc(value) or "")


@pytest.mark.parametrize("name", public())
def test_three_arguments_or_more_are_listed(name: str) -> None:
    value = ewc
    for part in name.split("."):
        value = getattr(value, part)
    if inspect.isclass(value) and issubclass(value, Warning):
        return
    arguments = [one for one in inspect.signature(value).parameters if one != "self"]
    text = inspect.getdoc(value) or ""
    if len(arguments) > 2:
        listed = text.partition("Args:\n")[2]
        assert all(f"\n    {argument}: " in f"\n{listed}" for argument in arguments)
