"""Figure 3C: how much two tasks rely on the same weights, by depth."""
