"""The games: MinAtar and Atari behind one interface, several copies at once."""
