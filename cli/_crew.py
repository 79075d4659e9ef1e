"""Who tries the methods of a command: this process, processes beside it, or the ranks that it was started among."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collsyn.portfolio.crew import Crew


@contextmanager
def crew_of(jobs: int) -> "Iterator[Crew | None]":
    """The crew of a command, closed at the end of the block; None for this process alone.

    Among ranks of an MPI job only rank 0 gets into the block. The others do what it gives out, and then leave the
    command without a word.
    """
    from collsyn.portfolio.crew import Beside
    from collsyn.runtime.bootstrap import MpiBootstrap, inside_mpi

    if inside_mpi():
        from collsyn.portfolio.ranks import AcrossRanks, follow

        bootstrap = MpiBootstrap()
        if bootstrap.rank:
            follow(bootstrap)
            raise click.exceptions.Exit(0)
        crew: Crew = AcrossRanks(bootstrap)
    elif jobs > 1:
        crew = Beside(jobs)
    else:
        yield None
        return
    try:
        yield crew
    finally:
        crew.close()
