"""Ranks that share a model, tensors sharded over them, and checkpoints of many ranks."""
