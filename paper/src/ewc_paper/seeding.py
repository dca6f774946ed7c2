"""Random numbers: every stream has a seed of its own, derived from the run's seed and its use.

No stream depends on how many numbers were drawn from another. So a run that goes on from a
checkpoint draws the same numbers as one that was never stopped, and a task's permutation does not
depend on how many tasks there are.
"""

import hashlib

import torch


def derive_seed(seed: int, *use: object) -> int:
    """A 63-bit seed for one use, such as `derive_seed(0, "shuffle", task, epoch)`."""
    digest = hashlib.sha256(repr((seed, *use)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: int, *use: object) -> torch.Generator:
    """A new random stream for one use."""
    return torch.Generator().manual_seed(derive_seed(seed, *use))
