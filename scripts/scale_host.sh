#!/usr/bin/env bash
# Lowers schedules of the methods for large machines at 8 to 18 ranks and runs them on host ranks, every byte checked;
# then one of them on an emulated hetero3d:2x2x4. The exit code is that of the first run in which something was wrong.
#
#     bash scripts/scale_host.sh            # some minutes, most of them starting ranks
#     bash scripts/scale_host.sh emulated   # the last part alone: simulated and measured microseconds
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

check() {
    echo "$*"
    local report
    report=$(collsyn bench "$1" -b 96K -e 96K -n 1 -w 1 -c 1 "${@:2}" 2>&1) || { echo "$report" >&2; exit 1; }
    grep -E "Out of bounds values" <<<"$report"
}

synthesize() {
    collsyn synthesize --size 96K --time-limit 5 "$@" >&2
}

if [ "${1:-}" != emulated ]; then
    for topology in torus:4x4 hetero3d:2x2x4 dgx-h100:2; do
        synthesize --collective alltoall --topology "$topology" --method translated -o translated.json
        check translated.json
    done
    python3 -c 'print("counts:", [[(7 * a + 3 * b) % 11 + 40 * (b == 3) for b in range(16)] for a in range(16)])' >counts.yaml
    synthesize --collective alltoallv --topology dgx-h100:2 --counts counts.yaml --method rebalanced -o rebalanced.json
    check rebalanced.json
    collsyn topology degrade torus:3x3 --drop-link 0-1 --slow-link 3-4=0.5 -o link.yaml >&2
    collsyn topology degrade torus:3x3 --drop-rank 4 -o rank.yaml >&2
    for collective in allgather reducescatter allreduce broadcast alltoall gather; do
        synthesize --collective "$collective" --topology torus:3x3 --method greedy --chunks 1 -o whole.json
        for rest in link rank; do
            synthesize --collective "$collective" --topology "$rest.yaml" --warm-start whole.json -o repaired.json
            check repaired.json
        done
    done
    synthesize --collective allgather --topology mesh:4x4 --groups 0-3,4-7/8-15 --method greedy -o groups.json
    check groups.json
fi
collsyn synthesize --collective alltoall --topology hetero3d:2x2x4 --size 64M --method translated -o emulated.json >&2
collsyn bench emulated.json --emulate hetero3d:2x2x4 -b 64M -e 64M -n 3 -w 1 -c 1 --json >emulated.report
python3 - <<'P'
import json

for row in json.load(open("emulated.report"))["results"]:
    measured = row["out_of_place"]["time"]
    print(f"emulated {measured:.1f} us, simulated {row['simulated_us']:.1f} us, {measured / row['simulated_us'] - 1:+.1%}")
P
