"""Speed and memory next to other libraries: `python -m benchmarks NAME`."""
