"""Benchmarks of the library against other libraries: `python -m benchmarks` or `make bench`.

Every result is also given as a multiple of something everyone knows (a plain forward and backward
pass, a plain training step) that is measured in the same run, so it can be compared with results
from another machine.
"""
