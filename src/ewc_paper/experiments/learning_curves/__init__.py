"""Figure 3A: accuracy of every task so far during training."""
