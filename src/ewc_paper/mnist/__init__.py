"""The supervised world: permuted images, the network, and learning tasks in a row."""
