"""Runs on disk: run directories, metrics, checkpoints, resuming, and worker processes.

Nothing here knows what is run: it can be anything that fits the protocol `runs.loop.Resumable`.
"""
