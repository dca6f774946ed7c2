"""Figure 1: the trajectories of SGD, L2 and EWC over the losses of two tasks."""
