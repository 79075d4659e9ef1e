"""Plans written by hand, each with the signals that let it be called again and again."""

from collsyn.model.collective import make_collective
from collsyn.model.plan import Buffer, Op, Plan

IN, OUT, SCRATCH = (int(buffer) for buffer in Buffer)


def signal(peer, flag, value=1):
    """Raise a flag of a peer."""
    return {"op": Op.SIGNAL, "peer": peer, "flag": flag, "value": value}


def wait(peer, flag, value=1):
    """Wait for an own flag, which `peer` raises."""
    return {"op": Op.WAIT, "peer": peer, "flag": flag, "value": value}


def move(op, dst, dst_offset, src, src_offset, length, peer=-1):
    """COPY, PUT or GET."""
    return {
        "op": op,
        "peer": peer,
        "dst_buffer": dst,
        "dst_offset": dst_offset,
        "src_buffer": src,
        "src_offset": src_offset,
        "length": length,
    }


def reduce(op, dst, dst_offset, src, src_offset, src2, src2_offset, length, peer=-1):
    """REDUCE or GET_REDUCE."""
    return move(op, dst, dst_offset, src, src_offset, length, peer) | {"src2_buffer": src2, "src2_offset": src2_offset}


def put_allgather(num_ranks, chunks=1):
    """Every rank puts its shard into the output of every other, one channel for each peer.

    Flag p of a rank (p a peer) is 1 when p is ready to receive from it and 2 when p's shard has arrived.
    """
    channels = []
    for rank in range(num_ranks):
        own = move(Op.COPY, OUT, rank * chunks, IN, 0, chunks)
        bodies = [
            [
                signal(peer, rank, 1),
                wait(peer, peer, 1),
                move(Op.PUT, OUT, rank * chunks, IN, 0, chunks, peer),
                signal(peer, rank, 2),
                wait(peer, peer, 2),
            ]
            for peer in range(num_ranks)
            if peer != rank
        ]
        channels += [(rank, body) for body in [[own], *bodies]]
    collective = make_collective("allgather", num_ranks, chunks)
    return Plan.build(collective, channels, [[]] * num_ranks, [num_ranks] * num_ranks, name="put-allgather")


def ring_allreduce(num_ranks):
    """Reduce-scatter by GET_REDUCE from the left neighbour into scratch, then allgather by GET, one channel a rank.

    Flag 0: progress of the left neighbour, flag 1: of the right one. Chunk c begins at rank c and ends at rank c - 1.
    """
    channels = []
    for rank in range(num_ranks):
        left, right = (rank - 1) % num_ranks, (rank + 1) % num_ranks
        # The first part: the own share of the chunk that begins here. All have arrived: the call has begun everywhere.
        body = [move(Op.COPY, SCRATCH, rank, IN, rank, 1), signal(right, 0, 1), signal(left, 1, 1), wait(right, 1, 1)]
        for step in range(1, num_ranks):
            chunk = (rank - step) % num_ranks
            last = step == num_ranks - 1
            target = OUT if last else SCRATCH
            body += [
                wait(left, 0, step),
                reduce(Op.GET_REDUCE, target, chunk, SCRATCH, chunk, IN, chunk, 1, left),
                signal(right, 0, step + 1),
            ]
        for step in range(1, num_ranks):
            chunk = (rank + 1 - step) % num_ranks
            body += [
                wait(left, 0, num_ranks + step - 1),
                move(Op.GET, OUT, chunk, OUT, chunk, 1, left),
                signal(right, 0, num_ranks + step),
            ]
        # Nobody leaves before the right neighbour has read everything from here.
        body += [signal(left, 1, 2), wait(right, 1, 2)]
        channels.append((rank, body))
    collective = make_collective("allreduce", num_ranks)
    scratch = [[(chunk, 0, 1) for chunk in range(num_ranks)]] * num_ranks
    return Plan.build(collective, channels, scratch, [2] * num_ranks, name="ring-allreduce")
