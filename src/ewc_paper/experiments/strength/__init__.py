"""Accuracy over the strength of the memory."""
