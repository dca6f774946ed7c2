"""Settings for all tests: one thread a worker, and no time limit on a single hypothesis example."""

import os
from collections.abc import Iterator

import hypothesis
import pytest
import torch

# Some virtual machines announce Intel's AMX and end a process that uses it ("illegal instruction").
# oneDNN reads this at its first product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray reads it at its import: loopback only
torch.set_num_threads(1)
hypothesis.settings.register_profile("ewc", deadline=None)
hypothesis.settings.load_profile("ewc")


@pytest.fixture(autouse=True)
def denormals() -> Iterator[None]:
    """A part that is run in this process may flush denormals, and hypothesis needs them."""
    yield
    torch.set_flush_denormal(False)
