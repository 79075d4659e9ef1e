"""The command line: one file a subcommand, and the only place that prints."""

import os
import signal

INTERRUPTED = 130


def run() -> int:
    """What `collsyn` calls: as `main.main`, but Ctrl-C is answered in one line also while that is being loaded.

    Once the command is over Ctrl-C does what the system does, so that what is left to tidy up says nothing of it.
    """
    try:
        from collsyn.errors import interrupt

        signal.signal(signal.SIGINT, interrupt)
        from .main import main

        return main()
    except KeyboardInterrupt:
        # Before or after what `main` answers itself.
        os.write(2, b"collsyn: error: interrupted\n")
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # If the exception ever left code run from a string, as named tuples are made, `python -m` ends itself by
        # SIGINT rather than with our exit code, even where it was handled; running another string makes it forget.
        exec("")
