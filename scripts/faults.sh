#!/usr/bin/env bash
# Every fault against every experiment, as one table.
#
#   scripts/faults.sh [GINLAB] [FOLDER]     FOLDER gets faults.csv (default: $OUT, then a new one under /tmp)
#   scripts/faults.sh --page FOLDER [--check]   draws docs/faults.md from faults.csv.xz in FOLDER, below data/; or says whether it is so drawn
#   scripts/faults.sh --merge FOLDER CSV...     FOLDER gets faults.csv, one of several tables (of parts, of other machines)
#   JOBS=N        cells that run at the same time (default: one for four cores; more, and deadlines pass for want of a core)
#   DEADLINE=N    seconds that programs wait for anything (default: 3; a machine that others use needs more)
#   ONLY=REGEX    cells by their name, `program / fabric / fault`: ONLY='shmem / (tcp|worst) / '
#
# A row says which program, fabric and fault; the exit codes that are right and the one that came; seconds from the fault to the last process; the
# line that was said; what was left behind (processes, files in /dev/shm and /tmp); and why a cell does not apply or was skipped. A cell
# falls short when its code is another, its line does not say what happened, it takes longer than its deadline and two seconds, a row in its CSV is
# not whole, or something is left. Exit code 1 if one has fallen short.
# Each cell has name spaces of its own, so root is needed. What has fallen short is run once more, alone: a busy machine makes deadlines pass.
# An hour on two cores. Cells on a GPU (`same GPU`) need one, and nvcc for a neighbour; run those with JOBS=1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ ${1:-} == --help || ${1:-} == -h ]]; then
    sed -n '2,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit
fi
if [[ ${1:-} == --page ]]; then
    exec python3 scripts/faults-page.py "${@:2}"
fi
if [[ ${1:-} == --merge ]]; then
    GINLAB_REPOSITORY=$PWD exec python3 scripts/faults.py "$@"
fi
ginlab=$(realpath "${1:-target/release/ginlab}")
folder=${2:-${OUT:-$(mktemp -d /tmp/ginlab-faults.XXXXXX)}}
[[ -x $ginlab ]] || { echo "faults.sh: no program $ginlab: make build, or name one" >&2; exit 2; }
if ! setpriv --pdeathsig KILL unshare --mount --pid --ipc --net --fork true 2>/dev/null; then
    echo 'faults.sh: not run: no name spaces of processes and mounts can be made here (root is needed)' >&2
    exit 2
fi
mkdir -p "$folder"
echo "faults.sh: results go to $folder" >&2
# A cell has a /tmp and a /dev/shm of its own: what it runs lies elsewhere.
work=$(mktemp -d /var/tmp/ginlab-faults.XXXXXX)
# Also of a run that is cut short.
trap 'cp "$work/cells/faults.csv" "$folder/" 2>/dev/null; rm -rf "$work"' EXIT
trap 'kill "$runner" 2>/dev/null; exit 143' INT TERM
runner=
cp "$ginlab" scripts/faults.py "$work"
# Cards in software, where they lie beside it; cargo builds them one folder below.
beside=$(dirname "$ginlab")
cp "$beside/libsoft_efa.so" "$work" 2>/dev/null || cp "$beside/deps/libsoft_efa.so" "$work" 2>/dev/null || true
GINLAB_REPOSITORY=$PWD python3 "$work/faults.py" "$work/ginlab" "$work/cells" "${JOBS:-$((($(nproc) + 3) / 4))}" "${ONLY:-.}" &
runner=$!
wait "$runner" && code=0 || code=$?
exit "$code"
