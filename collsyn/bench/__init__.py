"""Benchmarks: sweeps, comparison with other libraries, regression."""
