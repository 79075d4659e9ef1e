"""Programs that were started one by one and end without closing their communicators."""

import subprocess
import sys
from pathlib import Path

import pytest

SIZE = 3


def run(folder, how):
    """Exit code, output and errors of every rank."""
    command = [sys.executable, str(Path(__file__).with_name("program.py")), str(folder)]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(SIZE), how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(SIZE)
    ]
    try:
        return [(rank.wait(100), *rank.communicate()) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()


@pytest.mark.parametrize("how", ["well", "fail"])
def test_the_end_of_a_program_is_the_end_of_its_communicator(tmp_path, how):
    ended = run(tmp_path, how)
    if how == "well":
        assert ended == [(0, "3\n", "")] * SIZE
        return
    code, printed, errors = ended[0]
    assert (code, printed) == (1, "3\n")
    assert "out of ideas" in errors
    # The others may be told of the end while they still wait for the call that rank 0 has already left.
    assert all(printed == "3\n" or "rank 0 failed: out of ideas" in errors for _, printed, errors in ended[1:]), ended
