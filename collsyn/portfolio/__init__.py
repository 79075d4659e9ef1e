"""Automatic choice: runs the synthesizers that accept a problem and keeps the best."""
