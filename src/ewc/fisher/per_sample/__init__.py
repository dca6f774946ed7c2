"""Exact per-sample sums, read from the autograd graph of a batch.

In the order in which a batch passes through them:

- `watch`: operations of the forward pass that leave no trace in the graph.
- `graph`: where each parameter is used.
- `flow`: which dimension of each tensor has the samples.
- `plan`: which parameters have a rule, and which are done one sample at a time.
- `checks`: what must hold for a batch before rules are used for it.
- `binders`, `rules`: the rule of an operation, and the per-sample gradients that it gives.
- `sums`: the backward passes of a batch, and the sums of squares.
"""
