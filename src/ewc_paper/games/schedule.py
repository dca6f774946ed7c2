"""The order in which games are learned: random, and with returns."""

from collections.abc import Sequence

import numpy as np


def segments(games: Sequence[str], visits: int, seed: int) -> list[str]:
    """The game of each segment, `visits * len(games)` of them.

    Every round is a random permutation of the games, drawn uniformly among those that do not begin
    with the game the round before ended with. More visits only add rounds at the end.
    """
    if len(set(games)) < len(games) or len(games) < min(visits, 2):
        raise ValueError(
            f"expected different games, at least two if they are to be visited again; "
            f"got {list(games)} for {visits} visits"
        )
    random = np.random.default_rng(seed)
    order: list[str] = []
    while len(order) < visits * len(games):
        a_round = [games[index] for index in random.permutation(len(games))]
        if order[-1:] != a_round[:1]:
            order += a_round
    return order
