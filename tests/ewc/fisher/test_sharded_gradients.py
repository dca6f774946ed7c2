"""Gradients are squared while layers are gathered, one after another."""


def test_no_more_layers_are_gathered_than_in_training(four_ranks):
    # FSDP keeps the last layer, which belongs to the root, until its backward, and fetches the
    # next one ahead: 3 of 8.
    assert max(four_ranks.of("sharded.most_gathered")) <= 3
