"""Collective calls on arrays of one's own: communicators, process groups, and asynchronous work."""
