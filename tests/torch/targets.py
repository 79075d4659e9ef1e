"""Functions that run on every rank of a job that a test launches."""

import torch
import torch.distributed as dist

from tests.torch.calls import CALLS, Shapes
from tests.torch.job import process_group


def _same(mine, theirs):
    return len(mine) == len(theirs) and all(
        one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
        for one, other in zip(mine, theirs, strict=True)
    )


def _group_pairs(rank, size):
    """Groups of both backends with the same ranks: all, and two that overlap; those without this rank are left out."""
    chosen = [list(range(size)), list(range(size // 2 + 1)), list(range(size // 2, size))]
    pairs = []
    for ranks in chosen:
        ours, theirs = dist.new_group(ranks), dist.new_group(ranks, backend="gloo")
        if rank in ranks:
            pairs.append((ranks, ours, theirs))
    return pairs


def compare(bootstrap, rounds, seed):
    """Random calls by both backends; what came out different."""
    wrong = []
    rank, size = bootstrap.rank, bootstrap.size
    with process_group(bootstrap):
        pairs = _group_pairs(rank, size)
        for number in range(rounds):
            for call in CALLS:
                for ranks, ours, theirs in pairs:
                    key = (seed * 1000 + number) * 100 + ranks[0] + 10 * len(ranks)
                    is_async = number % 2 == 1
                    results = []
                    for group in (ours, theirs):
                        given = Shapes(key, ranks.index(rank), len(ranks), group is theirs)
                        work, tensors = call(given, group, is_async)
                        if is_async:
                            work.wait()
                        results.append(tensors)
                    if not _same(*results):
                        wrong.append(f"{call.__name__} {key} in {ranks}: {results}"[:2000])
    return wrong


def others(bootstrap):
    """Calls with results that are known: objects, other forms, old names, pairs, futures, odd types."""
    rank, size = bootstrap.rank, bootstrap.size
    total = size * (size - 1) // 2
    with process_group(bootstrap) as world:
        found = {
            "objects": _objects(rank, size),
            "coalesced": _coalesced(rank, total),
            "functional": _functional(rank, size, total),
            "old names": _old_names(world, rank, size, total),
            "pairs": _pairs(rank, size),
            "futures": _futures(rank, total),
            "types": _types(rank, size),
            "average": _average(rank, size),
            "uneven": _uneven(rank, size),
            "devices": dist.get_backend() == "collsyn" and dist.get_world_size() == size and world.name() == "collsyn",
        }
        dist.barrier()
        dist.barrier(async_op=True).wait()
    return [name for name, is_right in found.items() if not is_right]


def _objects(rank, size):
    gathered, received = [None] * size, [None]
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * 10 * rank})
    dist.broadcast_object_list(listed := [f"of {rank}", rank], src=1)
    dist.scatter_object_list(received, [{"to": to} for to in range(size)] if rank == 0 else None, src=0)
    collected = [None] * size if rank == 2 else None
    dist.gather_object(("here", rank), collected, dst=2)
    return (
        gathered == [{"rank": other, "text": "x" * 10 * other} for other in range(size)]
        and listed == ["of 1", 1]
        and received == [{"to": rank}]
        and (rank != 2 or collected == [("here", other) for other in range(size)])
    )


def _coalesced(rank, total):
    tensors = [torch.full((length,), float(rank)) for length in (3, 0, 1000)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    mixed = [torch.full((5,), float(rank)), torch.full((4,), rank)]
    opts = torch._C._distributed_c10d.AllreduceCoalescedOptions()
    dist.group.WORLD.allreduce_coalesced(mixed, opts).wait()
    size = dist.get_world_size()
    outputs = [torch.zeros(size * length) for length in (2, 7)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, length in zip(outputs, (2, 7), strict=True):
            dist.all_gather_into_tensor(output, torch.full((length,), float(rank)))
    manager.wait()
    parts = [torch.zeros(length) for length in (2, 7)]
    with dist._coalescing_manager():
        for part, length in zip(parts, (2, 7), strict=True):
            dist.reduce_scatter_tensor(part, torch.arange(size).repeat_interleave(length).float())
    return (
        all((tensor == total).all() for tensor in [*tensors, *mixed])
        and all(
            torch.equal(output, torch.arange(size).repeat_interleave(length).float())
            for output, length in zip(outputs, (2, 7), strict=True)
        )
        and all((part == rank * size).all() for part in parts)
    )


def _functional(rank, size, total):
    import torch.distributed._functional_collectives as functional

    group = dist.group.WORLD
    summed = functional.all_reduce(torch.full((6,), float(rank)), "sum", group)
    gathered = functional.all_gather_tensor(torch.full((2, 3), rank), 0, group)
    scattered = functional.reduce_scatter_tensor(torch.arange(size).float() + rank, "sum", 0, group)
    exchanged = functional.all_to_all_single(torch.full((size,), rank), [1] * size, [1] * size, group)
    sent = functional.broadcast(torch.full((3,), rank), 1, group)
    both = functional.all_reduce_coalesced([torch.full((2,), float(rank)), torch.full((3,), float(rank))], "max", group)
    lists = functional.all_gather_into_tensor_coalesced([torch.full((2,), rank), torch.full((1,), rank)], group)
    parts = functional.reduce_scatter_tensor_coalesced([torch.ones(size), torch.ones(2 * size)], "sum", [0, 0], group)
    return (
        bool((summed == total).all())
        and torch.equal(gathered.view(-1), torch.arange(size).repeat_interleave(6))
        and float(scattered) == size * rank + total
        and exchanged.tolist() == list(range(size))
        and sent.tolist() == [1] * 3
        and all(bool((one == size - 1).all()) for one in both)
        and lists[0].tolist() == torch.arange(size).repeat_interleave(2).tolist()
        and [one.tolist() for one in parts] == [[size], [size] * 2]
    )


def _old_names(world, rank, size, total):
    one = torch.full((4,), float(rank))
    world.allreduce(one).wait()
    output, part = torch.zeros(size * 3), torch.zeros(2)
    world._allgather_base(output, torch.full((3,), float(rank))).wait()
    world._reduce_scatter_base(part, torch.ones(2 * size)).wait()
    exchanged = torch.zeros(size)
    world.alltoall_base(exchanged, torch.full((size,), float(rank)), [], []).wait()
    world.allgather_into_tensor_coalesced([second := torch.zeros(size)], [torch.full((1,), float(rank))]).wait()
    world.reduce_scatter_tensor_coalesced([third := torch.zeros(1)], [torch.ones(size)]).wait()
    lists = [[torch.zeros(1), torch.zeros(2)] for _ in range(size)]
    world.allgather_coalesced(lists, [torch.full((1,), float(rank)), torch.full((2,), float(rank))]).wait()
    world.barrier().wait()
    return (
        bool((one == total).all())
        and torch.equal(output, torch.arange(size).repeat_interleave(3).float())
        and bool((part == size).all())
        and exchanged.tolist() == second.tolist() == list(range(size))
        and float(third) == size
        and all(float(pair[0]) == other and pair[1].tolist() == [other] * 2 for other, pair in enumerate(lists))
    )


def _pairs(rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    received = [torch.zeros(length) for length in (3, 500, 0)]
    works = []
    # Tags are received in another order than they are sent in.
    for tag, length in enumerate((3, 500, 0)):
        works.append(dist.isend(torch.full((length,), 10.0 * rank + tag), after, tag=tag))
    for tag in (2, 0, 1):
        works.append(dist.irecv(received[tag], before, tag=tag))
    for work in works:
        work.wait()
    is_right = all(bool((one == 10.0 * before + tag).all()) for tag, one in enumerate(received))
    there, here = torch.full((4, 4), rank)[:, ::2], torch.zeros((4, 2), dtype=torch.int64)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, there, after), dist.P2POp(dist.irecv, here, before)]):
        work.wait()
    if rank == 0:
        dist.send(torch.arange(5), 1)
    elif rank == 1:
        dist.recv(five := torch.zeros(5, dtype=torch.int64), 0)
        is_right &= five.tolist() == [0, 1, 2, 3, 4]
    return is_right and bool((here == before).all())


def _futures(rank, total):
    tensor = torch.full((3,), float(rank))
    work = dist.all_reduce(tensor, async_op=True)
    doubled = work.get_future().then(lambda future: 2 * future.value()[0])
    is_right = doubled.wait().tolist() == [2.0 * total] * 3
    works = [dist.all_reduce(torch.full((100,), float(rank)), async_op=True) for _ in range(20)]
    for one in works:
        one.wait()
    done = dist.group.WORLD.allreduce([tensor])
    done.wait()
    return is_right and all(bool((one.result()[0] == total).all()) and one.is_success() for one in works)


def _types(rank, size):
    is_right = True
    for dtype in (torch.bool, torch.int16, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.bfloat16):
        values = torch.tensor([0, 1, 0, 1]).to(torch.float32).to(dtype)
        mine = values if rank == 1 else torch.zeros_like(values)
        dist.broadcast(mine, 1)
        gathered = [torch.zeros_like(values) for _ in range(size)]
        dist.all_gather(gathered, values)
        is_right &= all(torch.equal(one.view(torch.uint8), values.view(torch.uint8)) for one in [mine, *gathered])
    negated, summed = torch.full((2,), 1j * rank).conj().imag, torch.full((2,), 1.0 + 1j)
    assert negated.is_neg()
    gathered = [torch.zeros(2) for _ in range(size)]
    dist.all_gather(gathered, negated)
    dist.all_reduce(summed)
    is_right &= all(one.tolist() == [-other] * 2 for other, one in enumerate(gathered))
    return is_right and summed.tolist() == [size * (1 + 1j)] * 2


def _average(rank, size):
    is_right = True
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        mean = torch.full((9,), float(rank), dtype=dtype)
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        part = torch.zeros(2, dtype=dtype)
        dist.reduce_scatter_tensor(part, torch.full((2 * size,), float(rank), dtype=dtype), dist.ReduceOp.AVG)
        is_right &= bool((mean == (size - 1) / 2).all() and (part == (size - 1) / 2).all())
    return is_right


def _uneven(rank, size):
    outputs = [torch.zeros(other + 1) for other in range(size)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
    part = torch.zeros(rank + 1)
    dist.reduce_scatter(part, [torch.full((other + 1,), float(other)) for other in range(size)])
    received = [torch.zeros(rank, dtype=torch.int32) for _ in range(size)]
    dist.all_to_all(received, [torch.full((to,), rank, dtype=torch.int32) for to in range(size)])
    return (
        all(bool((one == other).all()) for other, one in enumerate(outputs))
        and bool((part == rank * size).all())
        and all(bool((one == other).all()) for other, one in enumerate(received))
    )


def fall_back(bootstrap):
    """What plans do not serve comes from gloo, with one warning for each kind of call; the warnings."""
    import warnings

    size = bootstrap.size
    with process_group(bootstrap), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(3):
            bits = torch.tensor([1 << bootstrap.rank])
            dist.all_reduce(bits, dist.ReduceOp.BOR)
        small = torch.full((3,), 1, dtype=torch.int8)
        dist.all_reduce(small)
        assert bits.tolist() == [(1 << size) - 1]
        assert small.tolist() == [size] * 3
    return [str(one.message) for one in heard if "collsyn" in str(one.message)]
