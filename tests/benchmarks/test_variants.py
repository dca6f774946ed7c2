"""The kinds of Fisher that are compared, and the one that squares the gradient of a batch."""

import pytest
import torch

from benchmarks.variants import BatchSquared, TimedLearner, variants
from ewc_paper.mnist.data import load
from ewc_paper.mnist.learner import FISHER_BATCH
from ewc_paper.mnist.tasks import PermutedTasks


@pytest.fixture(scope="module")
def learners() -> dict[str, TimedLearner]:
    tasks = PermutedTasks(load(train_samples=2 * FISHER_BATCH, test_samples=10), seed=0)
    return dict(variants(tasks))


def test_the_last_one_makes_up_for_the_batch_size(learners: dict[str, TimedLearner]) -> None:
    *kinds, squared, stronger = learners
    assert set(kinds) == {"exact", "sampled", "empirical"}
    ratio = learners[stronger].memory.strength / learners[squared].memory.strength
    assert ratio == FISHER_BATCH


def test_the_squared_gradient_of_a_batch_is_below_the_empirical_fisher(
    learners: dict[str, TimedLearner],
) -> None:
    torch.manual_seed(0)
    penalties = {}
    for name in ("empirical", "batch-squared"):
        learner = learners[name]
        learner._remember()
        assert learner.fisher_seconds > 0
        with torch.no_grad():
            for parameter in learner.model.parameters():
                parameter += 0.01
        penalties[name] = learner.memory.penalty().item()
    assert isinstance(learners["batch-squared"], BatchSquared)
    # (mean g)² <= mean g², by Jensen's inequality
    assert 0 < penalties["batch-squared"] < penalties["empirical"]
