"""Times collectives of torch.distributed by collsyn and by gloo, on the same ranks and tensors, in turn.

    python scripts/torch_table.py [--ranks 4] [--sizes 1M,16M] [--blocks 15] [--calls 3] [--json]

Needs torch (`pip install '.[torch]'`). Sizes are those of the largest tensor of a rank. Each block is some calls of one
backend behind a barrier; blocks of both alternate. Printed are the medians over blocks of the time of a call on the
slowest rank, their ratio (gloo / collsyn), and the processor time of a call on all ranks together.
"""

import argparse
import json
import socket
import statistics
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

import collsyn.torch  # noqa: F401
from collsyn.units import parse_size

COLLECTIVES = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single", "broadcast")


def _call(name: str, size_bytes: int, size: int) -> Any:
    """A function of a group that runs the collective on tensors of its own."""
    count = size_bytes // 4 // size * size
    whole, part = torch.ones(count), torch.ones(count // size)
    other = torch.ones(count)
    return {
        "all_reduce": lambda group: dist.all_reduce(whole, dist.ReduceOp.MAX, group),
        "all_gather_into_tensor": lambda group: dist.all_gather_into_tensor(whole, part, group),
        "reduce_scatter_tensor": lambda group: dist.reduce_scatter_tensor(part, whole, dist.ReduceOp.MAX, group),
        "all_to_all_single": lambda group: dist.all_to_all_single(whole, other, group=group),
        "broadcast": lambda group: dist.broadcast(whole, 0, group),
    }[name]


def _rank(rank: int, asked: argparse.Namespace, port: int, results: Any) -> None:
    warnings.filterwarnings("ignore", category=FutureWarning)
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, None, rank == 0)
    dist.init_process_group("collsyn", store=store, rank=rank, world_size=asked.ranks)
    groups = {"collsyn": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    for name in COLLECTIVES:
        for size_bytes in (parse_size(text) for text in asked.sizes.split(",")):
            call = _call(name, size_bytes, asked.ranks)
            seconds: dict[str, list[float]] = {backend: [] for backend in groups}
            cpu = dict.fromkeys(groups, 0.0)
            for block in range(asked.blocks + 1):
                for backend, group in groups.items():
                    dist.barrier()
                    begin, begin_cpu = time.perf_counter(), time.process_time()
                    for _ in range(asked.calls):
                        call(group)
                    took = (time.perf_counter() - begin) / asked.calls
                    if block:
                        seconds[backend].append(took)
                        cpu[backend] += (time.process_time() - begin_cpu) / asked.calls / asked.blocks
            results.put((rank, name, size_bytes, seconds, cpu))
    dist.barrier()
    dist.destroy_process_group()


def _rows(found: list[Any], asked: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for name, size_bytes in dict.fromkeys((name, size_bytes) for _, name, size_bytes, _, _ in found):
        of_ranks = [one for one in found if one[1:3] == (name, size_bytes)]
        row: dict[str, Any] = {"collective": name, "size_bytes": size_bytes, "ranks": asked.ranks}
        for backend in ("collsyn", "gloo"):
            slowest = [max(times) for times in zip(*(seconds[backend] for *_, seconds, _ in of_ranks), strict=True)]
            row |= {
                f"{backend}_ms": 1e3 * statistics.median(slowest),
                f"{backend}_best_ms": 1e3 * min(slowest),
                f"{backend}_cpu_ms": 1e3 * sum(cpu[backend] for *_, cpu in of_ranks),
            }
        row["ratio"] = row["gloo_ms"] / row["collsyn_ms"]
        row["best_ratio"] = row["gloo_best_ms"] / row["collsyn_best_ms"]
        row["cpu_ratio"] = row["gloo_cpu_ms"] / row["collsyn_cpu_ms"]
        rows.append(row)
    return rows


def main() -> None:
    """Run, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--sizes", default="1M,16M")
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    context = torch.multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    job = torch.multiprocessing.start_processes(
        _rank, (asked, port, results), asked.ranks, join=False, start_method="fork"
    )
    expected = asked.ranks * len(COLLECTIVES) * len(asked.sizes.split(","))
    found: list[Any] = []
    while len(found) < expected:
        if not results.empty():
            found.append(results.get())
        elif job.join(timeout=0.05):
            break
    while not job.join():
        pass
    rows = _rows(found, asked)
    if asked.json:
        print(json.dumps(rows, indent=2))
        return
    print("| collective | bytes | collsyn, ms | gloo, ms | ratio | ratio of the best | ratio of processor times |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['collective']} | {row['size_bytes']} | {row['collsyn_ms']:.2f} | {row['gloo_ms']:.2f} "
            f"| {row['ratio']:.1f} | {row['best_ratio']:.1f} | {row['cpu_ratio']:.1f} |"
        )


if __name__ == "__main__":
    main()
