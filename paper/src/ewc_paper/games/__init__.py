"""Reinforcement learning: games, one network that plays all of them, learned one after another.

`training` has the loop, and puts together all else: the `schedule` of games, the `contexts` that
the agent takes for tasks, the `agent` with its `network` (or `gated_agent`), its `replay` memory,
and its `evaluation` with normalized `scores`. `config` has every setting. `worlds` are the games.
"""
