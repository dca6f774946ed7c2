"""Mean scores of a random player: `python tools/random_scores.py [GAME ...] [--episodes N]`.

Every game is an Atari game or a MinAtar task; the default is MinAtar's five, which is how the
random scores in `paper/src/ewc_paper/games/data/minatar_scores.json` were made.
"""

import argparse

import numpy as np

from ewc_paper.games.worlds.game import Game, make_game
from ewc_paper.games.worlds.minatar import GAMES


def main() -> None:
    """Print the mean score and its standard error for each game."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("games", nargs="*", default=[f"minatar/{game}" for game in GAMES])
    parser.add_argument("--episodes", type=int, default=1000)
    options = parser.parse_args()
    for name in options.games:
        game = make_game(name)
        scores = [random_score(game, episode) for episode in range(options.episodes)]
        error = np.std(scores, ddof=1) / np.sqrt(len(scores))
        print(f"{name:24} {np.mean(scores):10.3f} ± {error:.3f}", flush=True)


def random_score(game: Game, seed: int) -> float:
    """Return the total reward of one episode with uniformly random actions."""
    random = np.random.default_rng(seed)
    game.reset(seed)
    score = 0.0
    while True:
        _, reward, terminal, cut = game.step(int(random.integers(game.num_actions)))
        score += reward
        if terminal or cut:
            return score


if __name__ == "__main__":
    main()
