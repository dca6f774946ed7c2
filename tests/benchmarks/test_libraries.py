"""A library that is not installed is named, and how to install it."""

import importlib
from types import ModuleType

import pytest

from benchmarks.libraries import MissingLibrary, library


def test_a_missing_library_names_make_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(MissingLibrary, match=r"^opacus is not installed: `make bench`"):
        library("opacus")


def test_an_installed_library_is_imported() -> None:
    assert library("json.decoder").__name__ == "json.decoder"
