"""Synthesizes, proves, times and runs collective communication schedules."""

__version__ = "0.1.0"
