"""One set of defaults: a network is made from the groups that the experiments offer."""

from dataclasses import asdict, fields

from ewc_paper.experiments.learning_curves.run import LearningCurves
from ewc_paper.mnist.config import METHODS, TasksConfig, TrainingConfig
from ewc_paper.options import check_options, groups


def test_the_defaults_are_those_of_the_experiments() -> None:
    offered = {one.name: one.default for one in fields(LearningCurves)}
    for config in (TasksConfig, TrainingConfig):
        own = {one.name: one.default for one in fields(config) if one.name in offered}
        assert own.items() <= offered.items()


def test_the_defaults_fit_their_limits() -> None:
    options = [one.name for group in groups(TrainingConfig) for one in fields(group)]
    assert {"method", "seed", "curves"} <= set(options)
    given = {name: value for name, value in asdict(TrainingConfig()).items() if name != "method"}
    check_options(LearningCurves, given)
    check_options(LearningCurves, asdict(TasksConfig()))


def test_the_default_method_is_one_of_them() -> None:
    assert TrainingConfig().method in METHODS
