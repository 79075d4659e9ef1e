"""Designs networks of ranks linked to each other: which wiring should N ranks with D ports get."""
