"""Speed and memory of the runtimes; `python -m benchmarks.run`."""
