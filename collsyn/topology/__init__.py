"""Topologies by name and from files: presets, sub-allocations, symmetries."""
