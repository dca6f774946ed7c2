"""Elastic weight consolidation: a task is remembered as a quadratic well around its solution."""

__version__ = "0.1.0"
