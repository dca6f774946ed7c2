"""The ranks of a sharded model take turns, one sample of each at a time.

What they learn with it is compared in `tests/ewc/test_sharding.py`.
"""

from support.reference import assert_equal_fishers
from support.sharded import sequence_model, sequences

import ewc

CALLS = "sharded.other_calls"


def test_ranks_with_sequences_of_different_lengths_take_as_many_turns(four_ranks):
    batches = [batch for batches in sequences() for batch in batches]
    expected = ewc.fisher_diagonal(sequence_model(), batches, parameters="!2.bias")
    assert "1.bias" not in expected  # it is frozen
    for result in four_ranks.of("sharded.fisher_of_sequences")[:2]:
        assert_equal_fishers(result, expected)


def test_an_error_in_one_rank_is_an_error_in_all_and_changes_nothing(four_ranks):
    for rank, result in enumerate(four_ranks.of(CALLS)):
        other = "OtherProcessError: the process of rank 2 failed"
        assert result["broken"].startswith("ValueError: every tensor" if rank == 2 else other)
        assert result["bad label"].startswith("ValueError: labels must" if rank == 2 else other)
        assert result["tasks"] == []


def test_the_model_is_left_as_it_was(four_ranks):
    for result in four_ranks.of(CALLS):
        assert result["keeps gradients"]
        assert result["is sharded"]
        assert result["mode"] is True
