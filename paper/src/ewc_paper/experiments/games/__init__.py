"""Figure 4, A and B: games one after another in one network."""
