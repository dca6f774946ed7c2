"""Figure 4C: the score over the size of noise on the weights."""
