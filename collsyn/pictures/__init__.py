"""Pictures of what other parts computed: first the data, in arrays, then a thin drawing with matplotlib (an extra)."""
