"""Reinforcement learning: games, one network that plays all of them, learned one after another."""
