"""What the library costs, measured beside other libraries: `python -m benchmarks` or `make bench`.

Every number is a multiple of something everyone knows (a plain forward and backward pass, a plain
training step), measured in the same run, so that it means the same on another machine.
"""
