"""The games: Atari and MinAtar behind the interface of `game`, several copies at once."""
