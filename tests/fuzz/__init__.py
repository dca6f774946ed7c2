"""Random programs and models against slow, obvious references; `python -m fuzz` runs many."""
