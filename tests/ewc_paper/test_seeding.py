"""Random streams are fixed by the seed and the use, and independent of one another."""

import torch

from ewc_paper.seeding import derive_seed, generator


def test_a_seed_is_the_same_in_every_process_and_version() -> None:
    assert derive_seed(0) == 5254295370254170289
    assert derive_seed(3, "shuffle", 1, 2) == derive_seed(3, "shuffle", 1, 2)


def test_every_use_has_a_seed_of_its_own_that_fits_every_generator() -> None:
    uses = [(), ("a",), ("a", 1), ("a", "1"), ("b", 1), (1, "a"), ("a", 1, 0)]
    seeds = {derive_seed(seed, *use) for seed in range(50) for use in uses}
    assert len(seeds) == 50 * len(uses)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_generator_begins_anew_at_every_call() -> None:
    first, again, other = generator(1, "x"), generator(1, "x"), generator(1, "y")
    drawn = torch.rand(5, generator=first)
    assert torch.equal(drawn, torch.rand(5, generator=again))
    assert not torch.equal(drawn, torch.rand(5, generator=other))
