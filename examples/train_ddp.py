"""Trains a small language model with DistributedDataParallel, by gloo and by collsyn, and prints steps per second.

    python examples/train_ddp.py                      # 4 ranks here, one backend after the other
    python examples/train_ddp.py --emulate dgx1 --subset 0,1,4 --slower 2000
    torchrun --nproc-per-node 4 examples/train_ddp.py --backend collsyn
    mpirun -n 4 python examples/train_ddp.py --backend collsyn

With --emulate, ranks talk at the pace of that machine (so many times slower, so that this one can keep up), by the
usual ring and tree and by the schedule that collsyn makes for it. Needs torch: pip install 'collsyn[torch]'.
"""

import argparse
import importlib.util
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = ["the", "a", "small", "large", "red", "old", "ship", "house", "river", "dog", "king"]
WORDS += ["sees", "finds", "leaves", "under", "over", "near", "and", "then", "while"]
CONTEXT, WARM_UP = 32, 3


def text(length, seed):
    """Sentences of no meaning but with some order in them."""
    choose = random.Random(seed)
    words = []
    while len(words) < length:
        words += [*choose.choices(WORDS[:2]), *choose.sample(WORDS[2:11], 2), *choose.sample(WORDS[11:], 2)]
    return [WORDS.index(word) for word in words[:length]]


def make_model(width):
    """Predicts the next word from those before it."""
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(len(WORDS), width), nn.Embedding(CONTEXT, width)
            layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
            self.layers = nn.TransformerEncoder(layer, 2)
            self.head = nn.Linear(width, len(WORDS))

        def forward(self, words):
            ahead = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
            embedded = self.words(words) + self.places(torch.arange(CONTEXT))
            return self.head(self.layers(embedded, mask=ahead, is_causal=True))

    torch.manual_seed(0)
    return Model()


def train(asked):
    """Train on this rank; rank 0 prints the loss and steps per second."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    import collsyn.torch  # noqa: F401

    torch.set_num_threads(1)
    dist.init_process_group(asked.backend)
    model = DistributedDataParallel(make_model(asked.width))
    descent = torch.optim.AdamW(model.parameters(), lr=1e-3)
    words = torch.tensor(text(20_000, seed=dist.get_rank()))
    numbers = torch.Generator().manual_seed(dist.get_rank())
    begin = 0.0
    for step in range(WARM_UP + asked.steps):
        if step == WARM_UP:
            dist.barrier()
            begin = time.perf_counter()
        starts = torch.randint(len(words) - CONTEXT - 1, (asked.batch,), generator=numbers)
        rows = torch.stack([words[start : start + CONTEXT + 1] for start in starts.tolist()])
        loss = cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        descent.zero_grad()
        loss.backward()
        descent.step()
    dist.barrier()
    rate = asked.steps / (time.perf_counter() - begin)
    dist.all_reduce(total := loss.detach().clone())
    if dist.get_rank() == 0:
        megabytes = sum(one.numel() for one in model.parameters()) * 4 / 1e6
        mean = total.item() / dist.get_world_size()
        print(f"{asked.label or asked.backend}: {rate:.2f} steps/s ({megabytes:.1f} MB of gradients, loss {mean:.3f})")
        sys.stdout.flush()
    dist.destroy_process_group()


def run_ranks(asked, num_ranks, backend, label, settings):
    """Start this program once a rank, as torchrun would, and wait."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    command = [sys.executable, __file__, "--backend", backend, "--label", label]
    command += [f"--steps={asked.steps}", f"--width={asked.width}", f"--batch={asked.batch}"]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(num_ranks), **settings}
    ranks = [
        subprocess.Popen(command, env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(num_ranks)
    ]
    if any(list(map(subprocess.Popen.wait, ranks))):
        raise SystemExit(1)


def emulate(asked):
    """Train on an emulated machine by a ring, and by what is made for it."""
    import collsyn
    from collsyn.errors import InputError

    machine = collsyn.load_topology(asked.emulate)
    if asked.subset:
        machine = machine.subset([int(rank) for rank in asked.subset.split(",")])
    settings = {
        "COLLSYN_TOPOLOGY": asked.emulate,
        "COLLSYN_SUBSET": asked.subset,
        "COLLSYN_EMULATE": str(asked.slower),
        "COLLSYN_SYNTHESIS": "off",
    }
    print(f"{machine.name}, {machine.num_ranks} ranks, emulated {asked.slower:g} times slower")
    for method in ("ring", "binomial", "auto"):
        with tempfile.TemporaryDirectory() as folder:
            # One size is enough: each schedule of a folder serves the sizes nearest to its own.
            try:
                schedule = collsyn.synthesize("allreduce", machine, "1M", method=method, time_limit_s=20)
            except InputError as error:
                print(f"collsyn, {error}")
                continue
            collsyn.write_schedule(schedule, Path(folder) / "allreduce.json")
            run_ranks(
                asked, machine.num_ranks, "collsyn", f"collsyn, {method}", {**settings, "COLLSYN_SCHEDULES": folder}
            )


def main():
    """Be a rank, or start ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["gloo", "collsyn"], help="train with this one only")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--emulate", metavar="TOPOLOGY")
    parser.add_argument("--subset", default="", metavar="RANKS")
    parser.add_argument("--slower", type=float, default=2000.0)
    parser.add_argument("--label", default="", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        raise SystemExit("torch is not there: pip install 'collsyn[torch]'")
    is_rank = "RANK" in os.environ or int(os.environ.get("PMI_SIZE", os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))) > 1
    if is_rank:
        asked.backend = asked.backend or "collsyn"
        train(asked)
    elif asked.emulate:
        emulate(asked)
    else:
        for backend in [asked.backend] if asked.backend else ["gloo", "collsyn"]:
            run_ranks(asked, asked.ranks, backend, backend, {})


if __name__ == "__main__":
    main()
