"""The experiments: one file per figure of the paper, with how it is run and what is shown.

Larger ones are folders, with how it is run in `run` and what is shown in `figure`.

docs/architecture.md says how to add one, under "Add an experiment".

Experiments are imported when they are asked for: all of them need torch, which takes seconds to
import, and `ewc --help` and `ewc list` do not.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ewc_paper.experiments.experiment import Experiment

# by name: its class, and what is measured
_EXPERIMENTS = {
    "schematic": (
        "Schematic",
        "The ways of SGD, L2 and EWC over the losses of two tasks, in two parameters (figure 1).",
    ),
    "learning-curves": (
        "LearningCurves",
        "Accuracy of every task so far during training, for EWC, L2 and plain SGD (figure 3A).",
    ),
    "many-tasks": (
        "ManyTasks",
        "Average accuracy after 1, 2, 3, ... tasks, for EWC, dropout and others (figure 3B).",
    ),
    "fisher-overlap": (
        "FisherOverlap",
        "Fisher overlap of two tasks by depth, for small and large permuted squares (figure 3C).",
    ),
    "strength": (
        "Strength",
        "Average accuracy after the last task over the strength, for each way to take the pull.",
    ),
    "games": (
        "Games",
        "Games one after another with returns: plain training, EWC, and one network per game.",
    ),
    "perturbation": (
        "Perturbations",
        "The score of a single-game agent over the size of noise on its weights, by shape.",
    ),
    "recognition": (
        "Recognition",
        "How well ten Atari games are told apart by their frames, with switches and returns.",
    ),
}

SUMMARIES = {name: summary for name, (_, summary) in _EXPERIMENTS.items()}

# By name and preset: how long it takes on two cores, about; empty where it was not measured. They
# are here so that `ewc list` need not import the classes; a test compares the presets with theirs.
TIMES = {
    "schematic": {"quick": "10 s", "laptop": "10 s", "paper": "10 s"},
    "learning-curves": {"quick": "1 min", "laptop": "", "paper": "45 min"},
    "many-tasks": {"quick": "1 min", "laptop": "1 h", "hundred": "15 min", "paper": ""},
    "fisher-overlap": {"quick": "20 s", "laptop": "", "paper": ""},
    "strength": {"quick": "", "laptop": "8 min", "paper": ""},
    "games": {
        "quick": "3 min",
        "laptop": "70 min",
        "laptop-kronecker": "",
        "atari-small": "2.5 h",
        "atari-ten": "1.5 h",
        "atari-ten-kronecker": "",
        "sequential": "",
        "paper": "",
    },
    "perturbation": {"quick": "", "laptop": "3 min", "atari-small": "10 min", "paper": ""},
    "recognition": {"quick": "", "laptop": "2 min", "paper": ""},
}

NAMES = {class_name: name for name, (class_name, _) in _EXPERIMENTS.items()}


def module_name(experiment: str, part: str) -> str:
    """The module of an experiment or, if it is a folder, this part of it."""
    place = experiment.replace("-", "_")
    is_folder = (Path(__file__).parent / place / "__init__.py").is_file()
    return f"{__name__}.{place}.{part}" if is_folder else f"{__name__}.{place}"


class _Experiments(Mapping[str, "type[Experiment]"]):
    """By name, the class of an experiment; importing it waits until it is looked up."""

    def __getitem__(self, name: str) -> "type[Experiment]":
        module = import_module(module_name(name, "run"))
        experiment: type[Experiment] = getattr(module, _EXPERIMENTS[name][0])
        return experiment

    def __iter__(self) -> Iterator[str]:
        return iter(_EXPERIMENTS)

    def __len__(self) -> int:
        return len(_EXPERIMENTS)


EXPERIMENTS = _Experiments()
