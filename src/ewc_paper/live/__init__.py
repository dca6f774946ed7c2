"""What shows a run while it goes on: progress in the terminal, and TensorBoard."""
