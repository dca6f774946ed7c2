"""Other ways to compute the Fisher that need torch alone agree with ours."""

import pytest
import torch

from benchmarks.fisher import largest_difference
from benchmarks.models import MLP, Case, mlp, mlp_batch
from benchmarks.peers import Peer, batch_of_one, by_name, samples_in, torch_func
from ewc.fisher import fisher_diagonal

TINY = Case(MLP, mlp, mlp_batch, samples=8, batch_size=4, rounds=1)


@pytest.mark.parametrize("peer", [batch_of_one, torch_func])
def test_peers_of_torch_alone_agree_with_ours(peer: Peer) -> None:
    model, batches = TINY.make()
    ours = fisher_diagonal(model, batches, kind="empirical")
    _, difference = largest_difference(peer(model)(batches), ours)
    assert difference < 1e-5


def test_a_flat_vector_is_split_into_the_parameters() -> None:
    model = mlp()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    for name, part in by_name(flat, model).items():
        assert torch.equal(part, model.get_parameter(name))


def test_samples_are_counted_over_all_batches() -> None:
    assert samples_in(TINY.make()[1]) == 8
