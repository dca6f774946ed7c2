"""How far training strays from where it should rest."""

from torch.optim import Optimizer

from support.held_regression import Problem, one_step


def distances(problem: Problem, optimizer: Optimizer, steps: int) -> list[float]:
    """How far the weights, at the minimum of loss + penalty first, are from it after half of it."""
    minimum = Problem(problem.memory.strength).minimum()
    problem.set_weights(minimum[:4].unsqueeze(0), minimum[4:])
    problem.memory.attach(optimizer)
    found = []
    for _ in range(steps):
        one_step(problem, optimizer)
        found.append(float((problem.weights().double() - minimum).abs().max()))
    return found[steps // 2 :]
