"""Gradients are squared while layers are gathered, one after another."""


def test_no_more_layers_are_gathered_than_in_training(four_ranks):
    # One, and beside it in forward the last one, which belongs to the root, or in backward the
    # next, which FSDP fetches ahead.
    assert four_ranks.of("sharded.most_gathered") == [2, 2, 2, 2]
