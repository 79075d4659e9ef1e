"""What all communicators of a rank share: the other ranks, a watch over them, and one end for all."""

import atexit
import json
import sys
import threading
from collections.abc import Callable, Sequence

from collsyn.comm.sockets import GroupBootstrap, Switchboard, meet
from collsyn.errors import CollsynError, DeviceError
from collsyn.runtime.bootstrap import Bootstrap, PeerFailed
from collsyn.runtime.host import HostContext

_LOOK_S = 0.1
# Until a plan is made others may wait longer than they would in a call.
_MEET_LIMIT_S = 60.0
# How long the loss of a rank may take to be noticed once its sockets fell silent.
_NEWS_S = 2.0


class _Context(HostContext):
    """Messages of others are taken as they are: they name ranks as the whole job numbers them."""

    def peer_failed(self) -> PeerFailed:
        rank = self.own_control.aborted_by
        assert rank is not None
        self._failure = self.controls[rank].text
        return PeerFailed(self._failure)


class GroupContext(_Context):
    """A host context of a group's ranks, numbered as in the group."""

    def __init__(self, world: "World", bootstrap: Bootstrap) -> None:
        """Meet the other members."""
        self._world = world
        super().__init__(bootstrap, box=world.box)

    def look_after_peers(self) -> None:
        """The world looks after all ranks."""
        self._world.check()
        self.look_after_proxy()


class World:
    """One rank's view of a job.

    A thread lets other ranks in that want to meet for a group, and watches all ranks: once one is lost or fails, every
    communicator of the job has failed, on every rank, for the same reason.
    """

    def __init__(self, bootstrap: Bootstrap, timeout_s: float) -> None:
        """Meet all ranks; raises DeviceError where that cannot be. The bootstrap is not used afterwards."""
        self.rank, self.size, self.timeout_s = bootstrap.rank, bootstrap.size, timeout_s
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._is_by_peer = False
        self._has_failed = threading.Event()
        self._is_closed = False
        self._tags: dict[str, int] = {}
        self._members: dict[GroupBootstrap, GroupContext | None] = {}
        self._closers: list[Callable[[], None]] = []
        self._post = bootstrap.post
        self._context = _Context(bootstrap)
        self.box = self._context.box
        try:
            self._board = Switchboard(is_for_boxes=self._context.boxes.count > 1)
            self._names = [json.loads(name) for name in bootstrap.allgather(json.dumps(self._board.name).encode())]
        except BaseException as error:
            self._context.abort(str(error) or type(error).__name__)
            self._context.close()
            raise
        self._thread = threading.Thread(target=self._watch, name="collsyn-watch", daemon=True)
        self._thread.start()
        bootstrap.at_end(self._end)
        atexit.register(self._at_exit)

    def tag(self, what: str) -> str:
        """A name for a new group that its members choose alike, as they make groups of the same ranks in one order."""
        with self._lock:
            number = self._tags[what] = self._tags.get(what, 0) + 1
        return f"{what} ({number})"

    def meet(self, ranks: tuple[int, ...], tag: str) -> GroupContext:
        """A context of some ranks, all of which must call it; raises DeviceError."""
        names = [self._names[rank] for rank in ranks]
        limit_s = max(self.timeout_s, _MEET_LIMIT_S)
        bootstrap = meet(self._board, names, tag, ranks.index(self.rank), limit_s, self.check)
        bootstrap.post = None if self._post is None else self._post.of(ranks)
        with self._lock:
            self._members[bootstrap] = None
        # From here on a failure interrupts the exchanges; one that came before is seen now.
        self.check()
        context = GroupContext(self, bootstrap)
        with self._lock:
            self._members[bootstrap] = context
        self.check()
        return context

    def part(self, context: GroupContext) -> None:
        """Give up a context in good order."""
        context.close()
        with self._lock:
            bootstraps = [each for each, its in self._members.items() if its is context]
            for bootstrap in bootstraps:
                del self._members[bootstrap]
        for bootstrap in bootstraps:
            bootstrap.close()

    def at_close(self, closer: Callable[[], None]) -> None:
        """Have a communicator closed when the world ends."""
        self._closers.append(closer)

    def check(self) -> None:
        """Raise DeviceError where the job has failed or this rank has left it."""
        if self._failure is not None:
            raise self.error()
        if self._is_closed:
            raise DeviceError("this communicator is closed")

    def error(self) -> DeviceError:
        """Why the job has failed."""
        text = self._failure or "the job has failed"
        return PeerFailed(text) if self._is_by_peer else DeviceError(text)

    def fail(self, text: str, by_peer: bool = False) -> None:
        """End the job on all ranks for a reason; the first reason stays."""
        with self._lock:
            if self._failure is not None or self._is_closed:
                return
            self._failure, self._is_by_peer = text, by_peer
            members = list(self._members.items())
        self._context.abort(text)
        for bootstrap, context in members:
            if context is not None:
                context.abort(text)
            bootstrap.interrupt()
        self._has_failed.set()

    def failed(self, error: BaseException, ranks: Sequence[int]) -> DeviceError:
        """End the job because of an error in a call of a group; what to raise instead of it."""
        if isinstance(error, PeerFailed):
            # A silent socket does not say who is lost; the watch will.
            self._has_failed.wait(_NEWS_S)
        text = " ".join(str(error).split()) or type(error).__name__
        if tuple(ranks) != tuple(range(self.size)):
            text = f"{text} (in the group of ranks {', '.join(map(str, ranks))})"
        self.fail(f"rank {self.rank} failed: {text}", isinstance(error, PeerFailed))
        return self.error()

    def close(self) -> None:
        """Close all communicators of this rank and leave the job; later calls do nothing."""
        while self._closers:
            self._closers.pop()()
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            members = list(self._members.items())
        atexit.unregister(self._at_exit)
        self._board.close()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        for bootstrap, context in members:
            if context is not None:
                context.close()
            bootstrap.close()
        self._context.close()

    def _watch(self) -> None:
        try:
            while not self._is_closed:
                self._board.serve(_LOOK_S)
                # Lost ranks first: another rank may have told about them already.
                self._context.look_after_peers()
                self._context.check()
        except CollsynError as error:
            self.fail(str(error), by_peer=True)
        except Exception as error:
            # The door was closed under the wait, or nobody would ever know.
            if not self._is_closed:
                self.fail(f"rank {self.rank} failed: {error}")

    def _end(self, error: str | None) -> None:
        if error is not None:
            self.fail(f"rank {self.rank} failed: {error}")
        self.close()

    def _at_exit(self) -> None:
        """A program that ends with an error takes the others along; one that forgot to close does not."""
        error = getattr(sys, "last_value", None)
        self._end(None if error is None else " ".join(str(error).split()) or type(error).__name__)
