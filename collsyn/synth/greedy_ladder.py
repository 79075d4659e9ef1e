"""Chunk counts that the greedy synthesizers try."""

from collections.abc import Iterator

from collsyn.synth.problem import Problem

# Chunks are not cut below LEAST_BYTES[1], or with small sizes 1 / SIZE_SHARE of the size, or LEAST_BYTES[0].
LEAST_BYTES, SIZE_SHARE = (512, 16384), 256

# A count of chunks is given up when this many larger ones in a row were no better.
PATIENCE = 3

# A finish this close to the fluid bound needs no further search.
CLOSE_ENOUGH = 1.001


def rising(problem: Problem, largest_bytes: float, most: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, ... up to `most`, and until the largest chunk, `largest_bytes` uncut, is small."""
    least_bytes = min(LEAST_BYTES[1], max(LEAST_BYTES[0], problem.size_bytes // SIZE_SHARE))
    most = min(most, int(largest_bytes // max(problem.topology.min_piece_bytes, least_bytes)))
    power = 1
    while power <= max(most, 1):
        yield power
        if power > 1 and power * 3 // 2 <= most:
            yield power * 3 // 2
        power *= 2
