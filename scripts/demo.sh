#!/usr/bin/env bash
# Shows the whole of collsyn on this machine, in under three minutes: measure the links between 4 processes, make an
# allgather and an allreduce for them, prove both right, and run them against MPI's own. `make demo` calls it.
set -euo pipefail
out=${1:-collsyn-out/demo}
ranks=4
sizes=(1M 16M)
collectives=(allgather allreduce)

say() { printf '\n== %s\n' "$*"; }
run() {
    echo "\$ $*"
    "$@"
}

rm -rf "$out"
mkdir -p "$out"

say "1. Measure: what does a message between two of $ranks processes cost on this machine?"
run collsyn profile --ranks "$ranks" --quick -o "$out/profile.yaml"

say "2. Synthesize: who sends what to whom, and when? The bound is what no schedule can beat under the measured costs."
for size in "${sizes[@]}"; do
    for collective in "${collectives[@]}"; do
        run collsyn synthesize --collective "$collective" --topology "$out/profile.yaml" --size "$size" \
            -o "$out/$collective-$size.json"
    done
done

say "3. Prove: replay every schedule, chunk by chunk. Does every rank end with the right data?"
echo "\$ collsyn verify $out/all*.json | grep schedule"
collsyn verify "$out"/all*.json | grep schedule

say "4. Run: $ranks real processes, every byte checked, in turn with MPI's own collective (ratio: its time over ours)."
for size in "${sizes[@]}"; do
    run collsyn bench "$out/allgather-$size.json" "$out/allreduce-$size.json" -b "$size" -e "$size" --against mpi \
        --output "$out/bench-$size.json"
done

say "5. Result"
python3 - "${sizes[@]/#/$out/bench-}" <<'PYTHON'
import json
import sys

for name in sys.argv[1:]:
    for row in json.load(open(f"{name}.json"))["results"]:
        ours, mpi = row["out_of_place"]["time"], row["against"]["mpi"]
        low, high = mpi["ci"]
        print(
            f"{row['collective']:>10} of {row['size'] >> 20:>2} MiB: {ours / 1e3:7.3f} ms, MPI {mpi['time'] / 1e3:7.3f} ms: "
            f"{mpi['ratio']:.2f} times as fast (95% interval {low:.2f} .. {high:.2f}), all bytes right"
        )
PYTHON
echo "Files are in $out. Next: collsyn --help, README.md"
