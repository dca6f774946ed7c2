"""Engines, nodes and the whole program on a cluster: `python -m benchmarks.cluster.NAME`."""
