"""Measurements: one command a question. `python -m benchmarks.NAME [--quick]`."""
