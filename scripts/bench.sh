#!/usr/bin/env bash
# Reproduces the table of the README on this machine: collsyn against MPI on 4 host ranks. `make bench` calls it; the
# machine should have nothing else to do. Arguments: a folder for the files, the number of ranks.
set -euo pipefail
out=${1:-collsyn-out/bench}
ranks=${2:-4}
collectives=(allgather reducescatter allreduce alltoall broadcast)

mkdir -p "$out"
collsyn profile --ranks "$ranks" -o "$out/profile.yaml"
for collective in "${collectives[@]}"; do
    collsyn bench --collective "$collective" --topology "$out/profile.yaml" -b 64K -e 16M -f 16 -n 100 -w 5 --against mpi \
        --output "$out/$collective.json"
done

python3 - "${collectives[@]/#/$out/}" <<'PYTHON'
import json
import sys

print("\n| collective | size | method | collsyn ms | MPI ms | MPI / collsyn (95% interval) |\n|---|---|---|---|---|---|")
for path in sys.argv[1:]:
    for row in json.load(open(f"{path}.json"))["results"]:
        size = row["asked_bytes"]
        ours, mpi = row["out_of_place"]["time"], row["against"]["mpi"]
        shown = f"{size >> 20} MiB" if size >> 20 else f"{size >> 10} KiB"
        low, high = mpi["ci"]
        print(
            f"| {row['collective']} | {shown} | {row['method']} | {ours / 1e3:.3f} | {mpi['time'] / 1e3:.3f} "
            f"| {mpi['ratio']:.2f} ({low:.2f} .. {high:.2f}) |"
        )
PYTHON
