"""What a task leaves behind: quadratic wells, the sum of all tasks, and the one that pulls."""
