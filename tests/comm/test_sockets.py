"""How ranks meet without anyone's help, and who is not let in."""

import contextlib
import socket
import threading

import pytest

from collsyn.comm.sockets import Switchboard, knock, meet
from collsyn.errors import DeviceError

LIMIT_S = 20


@contextlib.contextmanager
def open_board():
    """A switchboard that is served by a thread."""
    board, over = Switchboard(), threading.Event()

    def serve():
        with contextlib.suppress(OSError, ValueError):
            while not over.is_set():
                board.serve(0.05)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield board
    finally:
        over.set()
        board.close()
        thread.join(LIMIT_S)


def test_members_of_several_groups_meet_in_any_order():
    with open_board() as board:
        names, results = [board.name] * 3, {}

        def join(tag, member):
            group = meet(board, names, tag, member, LIMIT_S, lambda: None)
            results[tag, member] = group.allgather(f"{tag}{member}".encode())
            group.close()

        threads = [threading.Thread(target=join, args=(tag, member)) for tag in "abc" for member in (2, 1, 0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
    assert results == {(tag, m): [f"{tag}{other}".encode() for other in range(3)] for tag in "abc" for m in range(3)}


def test_who_is_missing_is_named():
    with open_board() as board:
        end = knock(board.name, "pair", 2, LIMIT_S)
        with pytest.raises(DeviceError, match=r"rank 0 waited 0\.1 s for rank 1 to join"):
            board.gather("pair", 3, 0.1, lambda: None)
        end.close()


def test_a_failure_elsewhere_ends_the_wait():
    def check():
        raise DeviceError("rank 7 was lost")

    with open_board() as board, pytest.raises(DeviceError, match="rank 7 was lost"):
        board.gather("pair", 2, LIMIT_S, check)


def test_nobody_answers_at_a_closed_door():
    board = Switchboard()
    board.close()
    with pytest.raises(DeviceError, match="rank 0 cannot be reached"):
        knock(board.name, "pair", 1, LIMIT_S)


@pytest.mark.parametrize("words", [b"", b"\0" * 8, b"\xff" * 8, b"\2" + b"\0" * 7 + b"[]"])
def test_strangers_do_not_disturb(words):
    with open_board() as board:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(b"\0" + board.name.encode())
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
            assert stranger.recv(1) == b""
        end = knock(board.name, "pair", 1, LIMIT_S)
        (other,) = board.gather("pair", 2, LIMIT_S, lambda: None)
        end.close()
        other.close()


def test_interrupt_ends_an_exchange_in_another_thread():
    with open_board() as board:
        names, errors = [board.name] * 2, []
        ends = [threading.Thread(target=lambda: errors.append(meet(board, names, "x", 1, LIMIT_S, lambda: None)))]
        ends[0].start()
        hub = meet(board, names, "x", 0, LIMIT_S, lambda: None)
        ends[0].join(LIMIT_S)

        def exchange():
            try:
                hub.allgather(b"mine")
            except DeviceError as error:
                errors.append(str(error))

        thread = threading.Thread(target=exchange)
        thread.start()
        hub.interrupt()
        thread.join(LIMIT_S)
        assert "ended while rank 0 waited" in errors[1]
        hub.close()
        errors[0].close()
