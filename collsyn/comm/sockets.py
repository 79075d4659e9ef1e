"""Sockets between the ranks of any group, made when the group first meets, without the help of other ranks."""

import contextlib
import hmac
import json
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence

from collsyn.errors import DeviceError
from collsyn.runtime.bootstrap import SocketBootstrap

_HEAD = struct.Struct("<Q")
_CREDENTIALS = struct.Struct("3i")
_BACKLOG = 1024
_GREETING_LIMIT_S = 5.0
_LOOK_S = 0.1
_TCP = "tcp"


class GroupBootstrap(SocketBootstrap):
    """Exchanges of one group through its first member; `interrupt` ends those that wait in another thread."""

    def interrupt(self) -> None:
        """Let every exchange on either end of these sockets fail now."""
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the sockets."""
        for end in self._ends:
            end.close()


class Switchboard:
    """This rank's door for other ranks: a socket with a name in Linux's abstract space, which no file stands for.

    For ranks in several boxes it is one of TCP, and lets in who knows a secret that is part of the name.
    """

    def __init__(self, is_for_boxes: bool = False) -> None:
        """Open the door; DeviceError where the system refuses."""
        self._waiting: dict[tuple[str, int], socket.socket] = {}
        self._changed = threading.Condition()
        self._secret = os.urandom(16).hex() if is_for_boxes else ""
        try:
            if is_for_boxes:
                self._door = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                self._door.bind(("", 0))
                self.name = " ".join([_TCP, socket.gethostname(), str(self._door.getsockname()[1]), self._secret])
            else:
                self.name = f"collsyn-{os.getpid()}-{os.urandom(8).hex()}"
                self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._door.bind(b"\0" + self.name.encode())
            self._door.listen(_BACKLOG)
            self._door.setblocking(False)
        except OSError as error:
            raise DeviceError(f"cannot open a socket: {error.strerror}") from None

    def serve(self, limit_s: float) -> None:
        """Let in who knocks; returns after `limit_s` seconds, or when the door has been closed."""
        if not select.select([self._door], [], [], limit_s)[0]:
            return
        with contextlib.suppress(OSError, ValueError):
            visitor, _ = self._door.accept()
            try:
                key = _greeting(visitor, self._secret)
            except (OSError, ValueError):
                visitor.close()
                raise
            with self._changed:
                self._waiting[key] = visitor
                self._changed.notify_all()

    def gather(self, tag: str, size: int, limit_s: float, check: Callable[[], None]) -> list[socket.socket]:
        """Sockets to members 1 .. size - 1 of the group with this tag, in order, once all of them have knocked.

        `check` is called while waiting and may raise; DeviceError names who is missing after `limit_s` seconds.
        """
        keys = [(tag, member) for member in range(1, size)]
        deadline = time.monotonic() + limit_s
        with self._changed:
            while missing := [member for _, member in keys if (tag, member) not in self._waiting]:
                check()
                if time.monotonic() > deadline:
                    raise DeviceError(f"rank 0 waited {limit_s:g} s for rank {missing[0]} to join")
                self._changed.wait(_LOOK_S)
            return [self._waiting.pop(key) for key in keys]

    def close(self) -> None:
        """Let nobody in any more; `serve` returns."""
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        with self._changed:
            for visitor in self._waiting.values():
                visitor.close()
            self._waiting.clear()


def knock(name: str, tag: str, member: int, limit_s: float) -> socket.socket:
    """A socket to the rank whose switchboard has this name, as a member of a group; raises DeviceError."""
    end, secret, host = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), "", ""
    try:
        if name.startswith(_TCP):
            _, host, port, secret = name.split()
            end.close()
            # On one machine its own name may lead nowhere.
            address = "127.0.0.1" if host == socket.gethostname() else host
            end = socket.create_connection((address, int(port)), limit_s)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            end.settimeout(limit_s)
            end.connect(b"\0" + name.encode())
        message = json.dumps([tag, member, secret]).encode()
        end.sendall(_HEAD.pack(len(message)) + message)
    except OSError as error:
        end.close()
        where = f" on {host}" if host else ""
        raise DeviceError(f"rank 0{where} cannot be reached: {error.strerror or error}") from None
    return end


def meet(
    board: Switchboard, names: Sequence[str], tag: str, member: int, limit_s: float, check: Callable[[], None]
) -> GroupBootstrap:
    """Join a group as one of its members, whose switchboards have these names; all of them must call it."""
    ends = [knock(names[0], tag, member, limit_s)] if member else board.gather(tag, len(names), limit_s, check)
    return GroupBootstrap(member, len(names), ends, limit_s)


def _greeting(visitor: socket.socket, secret: str) -> tuple[str, int]:
    """Which group a visitor wants to meet, and as which member; ValueError for strangers."""
    visitor.settimeout(_GREETING_LIMIT_S)
    if visitor.family == socket.AF_UNIX:
        raw = visitor.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(raw)[1] != os.getuid():
            raise ValueError("of another user")
    else:
        visitor.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    (length,) = _HEAD.unpack(_exactly(visitor, _HEAD.size))
    if length > 1 << 20:
        raise ValueError("too long")
    tag, member, known = json.loads(_exactly(visitor, length))
    if not hmac.compare_digest(str(known), secret):
        raise ValueError("does not know the secret")
    return str(tag), int(member)


def _exactly(visitor: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = visitor.recv(length - len(data))
        if not part:
            raise ValueError("fell silent")
        data += part
    return data
