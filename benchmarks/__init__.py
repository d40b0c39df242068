"""Measured comparisons, each a command: `python -m benchmarks.NAME` prints a table and writes `results/NAME.json`."""
