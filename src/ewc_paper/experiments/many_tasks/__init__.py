"""Figure 3B: average accuracy over the number of tasks."""
