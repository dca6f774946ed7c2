"""The order in which games are learned: random, with several visits to each game."""

from collections.abc import Sequence

import numpy as np


def segments(games: Sequence[str], visits: int, seed: int) -> list[str]:
    """Return the game of each segment, `visits * len(games)` in all.

    Each round is a random permutation of the games, drawn uniformly among those that do not start
    with the last game of the previous round. A larger number of visits only adds rounds at the end.

    Args:
        games: the games, all different.
        visits: segments per game.
        seed: seed of the permutations.
    """
    if len(set(games)) < len(games) or len(games) < min(visits, 2):
        raise ValueError(
            f"expected different games, and at least two of them for more than one visit; "
            f"got {list(games)} for {visits} visits"
        )
    random = np.random.default_rng(seed)
    order: list[str] = []
    while len(order) < visits * len(games):
        a_round = [games[index] for index in random.permutation(len(games))]
        if order[-1:] != a_round[:1]:
            order += a_round
    return order
