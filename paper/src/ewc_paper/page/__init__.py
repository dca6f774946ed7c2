"""The page of a run: one HTML file with everything in it, and a server that keeps it up to date."""
