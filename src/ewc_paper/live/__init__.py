"""Shows a run while it is running: progress in the terminal, and TensorBoard."""
