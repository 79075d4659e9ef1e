#!/usr/bin/env bash
# A gate for CI: runs a suite, compares it with earlier runs on this machine, and fails with exit code 7 if a collective
# has become slower beyond noise. A plain runner:
#
#     scripts/ci_regression.sh                       # against the history in collsyn-out/ci, which the runner must keep
#     BASE=origin/main scripts/ci_regression.sh      # against that commit, measured here and now: nothing to keep
#
# Slurm, a node of its own (also: put these lines with # into a job file):
#
#     sbatch --nodes=1 --ntasks=1 --cpus-per-task=64 --exclusive --time=15 --wrap scripts/ci_regression.sh
#
# SUITE     a suite file, or the name of one that ships (host)
# TOPOLOGY  what schedules are made for; unless given, a profile that is measured once for RANKS (4) ranks and kept
# STATE     folder for profile, history and JUnit (collsyn-out/ci)
# RUNS      runs that a baseline must have (6)
# PYTHON    the Python that collsyn is installed for (python3)
set -euo pipefail
suite=${SUITE:-host} state=${STATE:-collsyn-out/ci} runs=${RUNS:-6} ranks=${RANKS:-4} python=${PYTHON:-python3}
history=$state/runs.jsonl topology=${TOPOLOGY:-$state/profile.yaml} here=$PWD

# Ranks are forked: of a Slurm job that is one task, which has all of its cores.
bench() { "$python" -P -m "${module:-collsyn.cli}" bench --suite "$suite" --topology "$topology" --launcher fork "$@"; }
recorded() { if [[ -f $history ]]; then grep -c '"regressions": \[\]' "$history" || true; else echo 0; fi; }

mkdir -p "$state"
# Kept, too: schedules for another profile would be another measurement.
if [[ -z ${TOPOLOGY:-} && ! -f $topology ]]; then
    "$python" -P -m collsyn.cli profile --ranks "$ranks" --launcher fork -o "$topology"
fi

if [[ -n ${BASE:-} ]]; then
    # The other commit from a checkout of its own, on this machine and in this hour; drift of days does not matter then.
    base=$(git rev-parse "$BASE") tree=$(mktemp -d)
    history=$state/base.jsonl
    rm -f "$history"
    git worktree add --quiet --detach "$tree" "$base"
    trap 'cd "$here" && git worktree remove --force "$tree"' EXIT
    for _ in $(seq "$runs"); do
        PYTHONPATH=$tree COLLSYN_COMMIT=$base module=cli bench --append "$history"
    done
elif (($(recorded) < runs)); then
    bench --append "$history" --junit "$state/bench.xml"
    echo "run $(recorded) of the $runs that a baseline needs; nothing compared yet"
    exit 0
fi
code=0
bench --baseline "$history" --append "$state/runs.jsonl" --junit "$state/bench.xml" || code=$?
[[ $code == 7 ]] && echo "slower than before: see $state/bench.xml; to accept it, begin a new $history" >&2
exit "$code"
