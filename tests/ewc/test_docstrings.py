"""Every public name has an example in its docstring, and all examples run."""

import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import ewc

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
