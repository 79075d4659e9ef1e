"""Runs the command line from a bare tree: `python -m cli`."""

import sys

from . import run

if __name__ == "__main__":
    sys.exit(run())
