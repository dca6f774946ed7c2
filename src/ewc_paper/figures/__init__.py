"""What the figures share: their look, the names in them, and the means over seeds."""
