"""Settings for all tests: one thread a worker, and no time limit on a single hypothesis example."""

from collections.abc import Iterator

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
hypothesis.settings.register_profile("ewc", deadline=None)
hypothesis.settings.load_profile("ewc")


@pytest.fixture(autouse=True)
def denormals() -> Iterator[None]:
    """A learner of games flushes denormals for the whole process, and hypothesis needs them."""
    yield
    torch.set_flush_denormal(False)
