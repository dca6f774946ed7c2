"""Which optimizers are known, and what is said of the others."""

import pytest
import torch
from support.held_regression import Problem, train
from torch.optim import SGD, Adadelta

from ewc.step_size import StepSize


def test_unknown_steps_are_refused_and_the_gradient_pull_is_named() -> None:
    class OwnStep(SGD):
        def step(self, closure=None):
            return super().step(closure)

    problem = Problem()
    for optimizer in (Adadelta(problem.model.parameters()), OwnStep(problem.model.parameters())):
        with pytest.raises(ValueError, match=r"not those of \w+; use .*how='gradient'"):
            problem.memory.attach(optimizer)
        problem.memory.attach(optimizer, how="gradient")


class SameStep(SGD):
    pass


class Halved(SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad, alpha=group["lr"] / 2)

    def step_size(self, group, parameters, states):
        return StepSize(group["lr"] / 2)


def test_a_number_called_step_size_is_no_rule() -> None:
    problem = Problem()
    optimizer = SGD(problem.model.parameters(), lr=0.3)
    optimizer.step_size = 0.1  # type: ignore[attr-defined]
    problem.memory.attach(optimizer)
    train(problem, optimizer)
    torch.testing.assert_close(problem.weights(), problem.minimum(), rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", [SameStep, Halved])
def test_a_subclass_that_keeps_the_step_or_says_its_own_is_known(kind: type[SGD]) -> None:
    problem = Problem()
    optimizer = kind(problem.model.parameters(), lr=0.3)
    problem.memory.attach(optimizer)
    minimum = problem.minimum()
    train(problem, optimizer)
    torch.testing.assert_close(problem.weights(), minimum, rtol=0, atol=1e-8)
