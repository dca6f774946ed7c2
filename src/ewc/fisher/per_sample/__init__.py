"""Exact per-sample sums, read from the autograd graph of a batch."""
