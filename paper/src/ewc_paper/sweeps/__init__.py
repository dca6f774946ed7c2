"""Sweeps: many runs of one experiment, with options that are listed or drawn at random."""
