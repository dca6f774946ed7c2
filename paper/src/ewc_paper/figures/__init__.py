"""What all figures share: their style, the labels in them, and means over seeds."""
