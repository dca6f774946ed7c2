"""The experiments: one folder per figure of the paper, with how it is run and how it is drawn.

docs/architecture.md says how to add one, under "Add an experiment".

Experiments are imported when they are asked for: all of them need torch, which takes seconds to
import, and `ewc --help` and `ewc list` do not.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ewc_paper.experiments.experiment import Experiment

# by name: the class in the folder's run.py, and what is measured, which is its docstring too
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


class _Experiments(Mapping[str, "type[Experiment]"]):
    """By name, the class of an experiment; importing it waits until it is looked up."""

    def __getitem__(self, name: str) -> "type[Experiment]":
        module = import_module(f"{__name__}.{name.replace('-', '_')}.run")
        experiment: type[Experiment] = getattr(module, _EXPERIMENTS[name][0])
        return experiment

    def __iter__(self) -> Iterator[str]:
        return iter(_EXPERIMENTS)

    def __len__(self) -> int:
        return len(_EXPERIMENTS)


EXPERIMENTS = _Experiments()
