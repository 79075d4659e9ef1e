"""What asynchronous calls return to torch: its Work and Future over the work of a communicator."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from collsyn.comm.work import Lane
from collsyn.comm.work import Work as Issued


class Done(dist.Work):
    """A call that is over."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """`tensors` hold the results."""
        super().__init__()
        self._tensors = list(tensors)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True: a failed call has raised already."""
        return True

    def exception(self) -> BaseException | None:
        """None."""
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors with the results."""
        return self._tensors

    def synchronize(self) -> None:
        """Return at once."""

    def get_future(self) -> Any:
        """A future that is over, with the tensors."""
        future: Any = torch.futures.Future()
        future.set_result(self._tensors)
        return future


class Pending(dist.Work):
    """A call in a lane. What it works on lives until it is over."""

    def __init__(self, lane: Lane, task: Callable[[], object], what: str, tensors: Sequence[torch.Tensor]) -> None:
        """Submit the task."""
        super().__init__()
        self._tensors = list(tensors)
        self._error: BaseException | None = None
        self._told: Any = torch.futures.Future()
        self._issued: Issued = lane.submit(lambda: self._do(task), what)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return when the call is over, or raise its error; DeviceError if it is not over after `timeout`."""
        # Torch says "no limit" with 0.
        seconds = timeout.total_seconds() if timeout is not None else 0
        self._issued.wait(seconds if seconds > 0 else None)
        return True

    def is_completed(self) -> bool:
        """Whether the call is over."""
        return self._issued.test()

    def is_success(self) -> bool:
        """Whether the call is over and went well."""
        return self._issued.test() and self._issued.exception() is None

    def exception(self) -> BaseException | None:
        """The error of a call that is over."""
        return self._issued.exception() if self._issued.test() else None

    def result(self) -> list[torch.Tensor]:
        """The tensors with the results."""
        return self._tensors

    def synchronize(self) -> None:
        """The same as `wait`."""
        self.wait()

    def get_future(self) -> Any:
        """A future with the tensors, or with the error."""
        return self._told.then(self._outcome)

    def _do(self, task: Callable[[], object]) -> None:
        try:
            task()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._told.set_result(None)

    def _outcome(self, _: object) -> list[torch.Tensor]:
        # Only what a callback raises is an error to the C++ side of a future.
        if self._error is not None:
            raise self._error
        return self._tensors


class Several(dist.Work):
    """Calls that count as one."""

    def __init__(self, works: Sequence[Any]) -> None:
        """Any works of torch."""
        super().__init__()
        self._works = list(works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all, one after the other."""
        for work in self._works:
            if timeout is None:
                work.wait()
            else:
                work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Whether all are over."""
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> Any:
        """A future of all of them."""
        return torch.futures.collect_all([work.get_future() for work in self._works])


def issue(
    lane: Lane, task: Callable[[], object], what: str, tensors: Sequence[torch.Tensor], is_async: bool
) -> dist.Work:
    """Do a task in a lane's order: in a thread of its own, or here and now."""
    if is_async:
        return Pending(lane, task, what, tensors)
    lane.run(task, what)
    return Done(tensors)
