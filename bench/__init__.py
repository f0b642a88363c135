"""Benchmarks by subject, run as modules from the root: `python -m bench.data.reader --help`."""
