"""Numbers chunks so that those which travel together are neighbours in the buffers, and so one copy in a plan."""

import numpy as np

from collsyn.model.arrays import Rows
from collsyn.model.schedule import Schedule
from collsyn.synth.timing import message_of_rows


def numbered_by_company(schedule: Schedule) -> Schedule:
    """The schedule with chunks of the same meaning numbered anew, companions in messages next to each other.

    Chunks of the same meaning (holders, receivers, length) are interchangeable, so the result is as right as the
    schedule and takes the same times; but a message whose chunks are neighbours is one copy when it runs, while one of
    scattered chunks is many. Every chunk is followed by the one that shares most messages with it (a nearest-neighbour
    path). O(sum over messages of chunks squared).
    """
    messages = schedule.messages
    if not len(messages) or int(messages.rows.lengths().max()) < 2:
        return schedule
    from collsyn.synth import _kernels

    collective = schedule.collective
    kinds = np.stack([collective.pre, collective.post, collective.units])
    _, kind = np.unique(kinds, axis=1, return_inverse=True)
    kind = np.asarray(kind, dtype=np.int64).reshape(-1)
    members = Rows.grouped(kind, int(kind.max()) + 1)
    message = message_of_rows(messages)
    company = Rows.grouped(schedule.chunk, collective.num_chunks)
    order = _kernels.company_order(
        members.ptr,
        members.data,
        company.ptr,
        message[company.data],
        messages.rows.ptr,
        schedule.chunk[messages.rows.data].astype(np.int64),
    )
    number = np.empty(collective.num_chunks, dtype=np.int32)
    number[order] = members.data
    columns = dict(schedule.columns())
    columns["chunk"] = number[schedule.chunk]
    topology, size_bytes = schedule.topology, schedule.size_bytes
    return Schedule.build(collective, topology, size_bytes, schedule.routes, schedule.provenance, **columns)
