"""Imports the other libraries that are measured; only `make bench` installs them."""

import importlib
import re
import warnings
from types import ModuleType

import torch


class MissingLibrary(ImportError):
    """A library of the extra `bench` is not installed."""


def library(name: str) -> ModuleType:
    """Import a module of another library; the error says how to install it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about parts of it that are not used here
            if name.split(".")[0] in ("avalanche", "laplace"):
                _import_torchvision()
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingLibrary(
            f"{error.name} is not installed: `make bench` installs it "
            "(the extra bench), and --ours measures without other libraries"
        ) from error


# Kept as long as the process runs: an operator is removed together with its library.
_declared = torch.library.Library("torchvision", "FRAGMENT")


def _import_torchvision() -> None:
    """Import torchvision, whose CUDA build fails to find its operators with a CPU build of torch.

    Two libraries import torchvision without using its operators, so it is enough to declare them.
    """
    while True:
        try:
            importlib.import_module("torchvision")
            return
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if missing is None:
                raise
            _declared.define(f"{missing[1]}(Tensor boxes, Tensor scores, float iou) -> Tensor")
