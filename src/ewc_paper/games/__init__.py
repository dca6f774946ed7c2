"""Reinforcement learning: games, one network that plays them all, and learning them in a row."""
