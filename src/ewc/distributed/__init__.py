"""Ranks that share a model, and tensors sharded over them."""
