"""A worker of the portfolio: `python -m collsyn.portfolio.worker DESCRIPTOR PARENT` does the tasks that come in."""

import signal
import sys
from multiprocessing.connection import Connection

from collsyn.runtime.worker import end_with_parent


def main(argv: list[str]) -> int:
    """Serve until the parent closes the connection, or ends."""
    end_with_parent(int(argv[1]))
    from collsyn.keyboard import Keyboard
    from collsyn.portfolio.crew import serve

    with Keyboard():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        serve(Connection(int(argv[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
