"""A program of one's own: python program.py FOLDER RANK SIZE HOW, ranks found through files of the folder."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from collsyn.comm.communicator import Communicator
from tests.comm.targets import FolderStore

folder, rank, size, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
comm = Communicator.from_store(FolderStore(Path(folder)), rank, size, timeout_s=60)
print(comm.all_reduce(np.array([rank]))[0], flush=True)
if rank == 0 and how == "fail":
    raise RuntimeError("out of ideas")
# The last call is issued, and nobody closes anything.
comm.all_reduce(np.ones(1000), async_op=True)
