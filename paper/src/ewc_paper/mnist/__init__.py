"""The supervised world: permuted images, the network, and learning tasks one after another."""
