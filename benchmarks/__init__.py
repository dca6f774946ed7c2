"""What is measured: `python -m benchmarks` or `make bench` runs the benchmarks of speed.

- `speed/`: the library next to other libraries. Every result is also given as a multiple of
  something everyone knows (a plain forward and backward pass, a plain training step) that is
  measured in the same run, so it can be compared with results from another machine.
- `studies/`: what makes the tables of the documentation, one command each:
  `python -m benchmarks.studies.methods`.
- `cluster/`: what engines cost, and what happens when a node is lost.
"""
