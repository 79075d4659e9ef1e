#!/usr/bin/env bash
# Everything that needs a GPU, on one: what the machine can do, then 8 virtual ranks on the GPU (scripts/gpu_check.py).
# Prepared for a bare tree and Python 3.11 or newer without a network: a folder `wheels/` beside this repository's files,
# or $WHEELS, is installed from if it is there, into an environment of its own.
#
#     bash scripts/gpu_check.sh [FOLDER]      # tables on stdout, gpu_check.json and doctor.json in FOLDER (default: .)
#
# To fill wheels/ on a machine with a network, for the Python and the driver of the other one:
#
#     pip download -d wheels --only-binary :all: --python-version 3.12 click highspy networkx numba numpy pulp pyyaml \
#         rich scipy cupy-cuda12x nvidia-cuda-nvrtc-cu12
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(realpath "${1:-.}")
wheels=${WHEELS:-wheels}
python=${PYTHON:-python3}
mkdir -p "$folder"

if [ -d "$wheels" ]; then
    environment=$(mktemp -d)
    trap 'rm -rf "$environment"' EXIT
    "$python" -m venv --system-site-packages "$environment"
    "$environment/bin/python" -m pip install --quiet --no-index --find-links "$wheels" "$wheels"/*.whl
    python=$environment/bin/python
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv || echo "nvidia-smi: not here"
timeout 60 "$python" -m cli doctor --json >"$folder/doctor.json" || true
"$python" -c "
import json, sys
for one in json.load(open(sys.argv[1]))['checks']:
    if one['status'] != 'ok':
        print(one['name'], one['status'], one['detail'], sep=': ')
" "$folder/doctor.json" || echo "doctor: no answer"
timeout "${LIMIT:-280}" "$python" scripts/gpu_check.py --limit "${CHECK_LIMIT:-220}" --output "$folder/gpu_check.json"
