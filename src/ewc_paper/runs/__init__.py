"""Runs on disk: directories, metrics, checkpoints, going on after a stop, many at once."""
