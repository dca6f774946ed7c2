"""The experiments of the paper on elastic weight consolidation, and the command `ewc`."""

__version__ = "0.2.0"
