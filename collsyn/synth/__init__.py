"""Synthesizers: one file an algorithm, and one table that lists them."""
