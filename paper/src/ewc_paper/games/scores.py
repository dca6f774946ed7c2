"""Scores that can be compared across games: 0 for a random player, 1 for a good one.

    normalized score = (score − random) / (reference − random)

On Atari the reference is a professional human games tester. The table is the usual one of 57 games,
with episodes of at most 30 minutes that start with up to 30 no-ops: Mnih et al. 2015
("Human-level control through deep reinforcement learning"), completed by van Hasselt et al. 2016
("Deep reinforcement learning with double Q-learning") and Wang et al. 2016 ("Dueling network
architectures for deep reinforcement learning").

On MinAtar the reference is the same agent, trained on that game alone. Its score was measured once
and stored in `data/minatar_scores.json`, with the mean of 1,000 random episodes
(`python tools/random_scores.py`). Tasks that differ by a symmetry have the same scores.
"""

import json
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from ewc_paper.games.worlds.minatar import parse
from ewc_paper.terminal import shown

MINATAR_FILE = Path(__file__).parent / "data" / "minatar_scores.json"

# name as in the ALE: (random, human)
ATARI_SCORES: dict[str, tuple[float, float]] = {
    "Alien": (227.8, 7127.7),
    "Amidar": (5.8, 1719.5),
    "Assault": (222.4, 742.0),
    "Asterix": (210.0, 8503.3),
    "Asteroids": (719.1, 47388.7),
    "Atlantis": (12850.0, 29028.1),
    "BankHeist": (14.2, 753.1),
    "BattleZone": (2360.0, 37187.5),
    "BeamRider": (363.9, 16926.5),
    "Berzerk": (123.7, 2630.4),
    "Bowling": (23.1, 160.7),
    "Boxing": (0.1, 12.1),
    "Breakout": (1.7, 30.5),
    "Centipede": (2090.9, 12017.0),
    "ChopperCommand": (811.0, 7387.8),
    "CrazyClimber": (10780.5, 35829.4),
    "Defender": (2874.5, 18688.9),
    "DemonAttack": (152.1, 1971.0),
    "DoubleDunk": (-18.6, -16.4),
    "Enduro": (0.0, 860.5),
    "FishingDerby": (-91.7, -38.7),
    "Freeway": (0.0, 29.6),
    "Frostbite": (65.2, 4334.7),
    "Gopher": (257.6, 2412.5),
    "Gravitar": (173.0, 3351.4),
    "Hero": (1027.0, 30826.4),
    "IceHockey": (-11.2, 0.9),
    "Jamesbond": (29.0, 302.8),
    "Kangaroo": (52.0, 3035.0),
    "Krull": (1598.0, 2665.5),
    "KungFuMaster": (258.5, 22736.3),
    "MontezumaRevenge": (0.0, 4753.3),
    "MsPacman": (307.3, 6951.6),
    "NameThisGame": (2292.3, 8049.0),
    "Phoenix": (761.4, 7242.6),
    "Pitfall": (-229.4, 6463.7),
    "Pong": (-20.7, 14.6),
    "PrivateEye": (24.9, 69571.3),
    "Qbert": (163.9, 13455.0),
    "Riverraid": (1338.5, 17118.0),
    "RoadRunner": (11.5, 7845.0),
    "Robotank": (2.2, 11.9),
    "Seaquest": (68.4, 42054.7),
    "Skiing": (-17098.1, -4336.9),
    "Solaris": (1236.3, 12326.7),
    "SpaceInvaders": (148.0, 1668.7),
    "StarGunner": (664.0, 10250.0),
    "Surround": (-10.0, 6.5),
    "Tennis": (-23.8, -8.3),
    "TimePilot": (3568.0, 5229.2),
    "Tutankham": (11.4, 167.6),
    "UpNDown": (533.4, 11693.2),
    "Venture": (0.0, 1187.5),
    "VideoPinball": (16256.9, 17667.9),
    "WizardOfWor": (563.5, 4756.5),
    "YarsRevenge": (3092.9, 54576.9),
    "Zaxxon": (32.5, 9173.3),
}


def normalized(name: str, score: float) -> float:
    """Scale a raw score of the game or task `name` from random (0) to reference (1)."""
    random, reference = _minatar(name) if name.startswith("minatar/") else _atari(name)
    return (score - random) / (reference - random)


def _atari(name: str) -> tuple[float, float]:
    if name not in ATARI_SCORES:
        near = ", ".join(get_close_matches(name, ATARI_SCORES)) or (
            f"one of {len(ATARI_SCORES)} Atari games such as Pong, or minatar/breakout"
        )
        raise ValueError(f"no human score is known for {shown(name)}; expected {near}")
    return ATARI_SCORES[name]


def _minatar(name: str) -> tuple[float, float]:
    scores = _read(MINATAR_FILE)[parse(name).game]
    random, reference = scores["random"], scores["reference"]
    if random is None or reference is None:
        raise ValueError(
            f"no reference score is stored for {shown(name)}; "
            f"put the score of a single-task run into {MINATAR_FILE.name}"
        )
    return random, reference


@cache
def _read(file: Path) -> dict[str, dict[str, float | None]]:
    scores: dict[str, dict[str, float | None]] = json.loads(file.read_text())
    return scores
