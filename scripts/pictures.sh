#!/usr/bin/env bash
# Draws the pictures of the pages. Those of the model are the same bytes on any machine with the same matplotlib; with
# `measured` as the second argument, the benchmark is taken anew, too (minutes; nothing else should run meanwhile).
# Needs the extra plot. Arguments: a folder for the pictures, `model` or `measured`.
set -euo pipefail
out=${1:-docs/pictures}
what=${2:-model}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

synthesize() { collsyn synthesize --size "$1" --collective "$2" --topology "$3" --method "$4" -o "$work/$5.json" >"$work/log"; }

collsyn compare --collective allreduce --topology dgx1 --sizes 16K:256M:4 \
    --methods greedy,two-way-ring,ring,recursive,paths --plot "$out/methods-dgx1.svg" >"$work/log"
collsyn topology show ndv2:2 --plot "$out/topology-ndv2.svg" >"$work/log"
collsyn topology find --num-ranks 256 --degree 4 -o none --plot "$out/designs-256.svg" >"$work/log"
python "$(dirname "$0")/graph_drawings.py" "$out/direct-connect-graphs.svg"
synthesize 64M allgather dgx-a100:2 greedy allgather
collsyn simulate "$work/allgather.json" --plot "$out/links-dgx-a100.svg" >"$work/log"

if [ "$what" = measured ]; then
    python "$(dirname "$0")/bench_scale.py" growth --plot "$out/greedy-growth.svg"
    for method in greedy two-way-ring; do
        synthesize 16M allreduce dgx1 "$method" "$method"
    done
    collsyn bench "$work"/{greedy,two-way-ring}.json --emulate dgx1 -b 64K -e 16M -f 4 -n 1 --plot "$out/bench-dgx1.svg"
fi
