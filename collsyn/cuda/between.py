"""The other boxes of a job on GPUs: a proxy carries between host memory, or GPUs, of ranks that share no memory."""

import os
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

from collsyn.cuda.driver import Driver
from collsyn.cuda.far import Beyond
from collsyn.errors import DeviceError
from collsyn.runtime.arena import CONTROL_BYTES, Control, OwnSegment
from collsyn.runtime.bootstrap import Bootstrap
from collsyn.runtime.boxes import Boxes
from collsyn.runtime.transport import context_numbers, make_device_proxy


class Between:
    """The proxy of this process's rank, and the memory that it offers to ranks in other boxes."""

    def __init__(
        self, boxes: Boxes, bootstrap: Bootstrap, driver: Driver, device: int, said: Sequence[dict[str, Any]]
    ) -> None:
        """`said` is what every process told of itself. Raises DeviceError for boxes of unequal size, and without an MPI
        that threads may call. `start` when all processes are here."""
        boxes.check_equal()
        self.boxes, self.rank = boxes, bootstrap.rank
        if bootstrap.post is None:
            far = next(rank for rank, box in enumerate(boxes.of_rank) if box != boxes.of_rank[self.rank])
            raise DeviceError(
                f"{boxes.words(self.rank)} and {boxes.words(far)} share no memory, and only ranks that MPI started "
                "(mpirun, srun) reach other boxes"
            )
        here = Counter(one["machine"] for one in said)[said[self.rank]["machine"]]
        is_crowded = 2 * here > len(os.sched_getaffinity(0))
        self._control = Control(OwnSegment(CONTROL_BYTES), os.getpid())
        self._proxy = make_device_proxy(
            self.rank,
            boxes,
            self._control,
            bootstrap.post,
            context_numbers.agree(one["number"] for one in said),
            is_crowded,
            driver.calls_of(device),
        )
        self.beyond = Beyond(boxes.near(self.rank), self._proxy.direct_from)
        self._regions: set[int] = set()
        self._offers = 0

    def start(self) -> None:
        """Begin to carry."""
        self._proxy.start()

    def offer(self, address: int, size: int, lanes: int, num_lanes: int) -> int:
        """Let far ranks name a plan's memory, and its kernel ask; the number to withdraw it by. Processes must offer
        and withdraw in the same order."""
        number = next(number for number in count() if number not in self._regions)
        self._regions.add(number)
        self._offers += 1
        self._proxy.offer(number, self._offers, address, size)
        self._proxy.let_ask(number, lanes, num_lanes)
        return number

    def withdraw(self, number: int) -> None:
        """Let nobody name that memory any more."""
        self._proxy.withdraw(number)
        self._regions.discard(number)

    def trouble(self) -> tuple[int, str] | None:
        """The rank for which this process must give up, and why; None where all is well."""
        if (rank := self._control.aborted_by) is not None:
            return rank, f"{self.boxes.words(rank)} failed: {self._proxy.last_words}"
        if (words := self._proxy.problem()) is not None:
            return self.rank, words
        return None

    def tell(self, message: str) -> None:
        """Say to all far ranks that this one has failed; once."""
        self._proxy.abort(self.rank, message)

    def close(self, in_order: bool) -> None:
        """Stop carrying."""
        self._proxy.close(in_order)
        self._control.close()
        self._control.forget()
