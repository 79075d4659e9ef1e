"""Runs the command line from a bare tree: `python -m cli`."""

import sys

from .main import main

if __name__ == "__main__":
    sys.exit(main())
