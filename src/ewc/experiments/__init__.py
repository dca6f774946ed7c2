"""The experiments: one file a figure of the paper, each a config with presets and its parts."""

from .config import Config
from .fisher_overlap import FisherOverlap
from .games import Games
from .learning_curves import LearningCurves
from .many_tasks import ManyTasks
from .perturbation import Perturbations
from .recognition import Recognition
from .schematic import Schematic
from .strength import Strength

EXPERIMENTS: dict[str, type[Config]] = {
    experiment.name: experiment
    for experiment in (
        *(Schematic, LearningCurves, ManyTasks, FisherOverlap, Strength),
        *(Games, Perturbations, Recognition),
    )
}
