"""Microbenchmarks of links, and the fits that make a profile of them."""
