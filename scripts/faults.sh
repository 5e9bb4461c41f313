#!/usr/bin/env bash
# Runs every experiment with every fault, and writes one table.
#
#   scripts/faults.sh [GINLAB] [DIR]          DIR gets faults.csv [default: OUT, or new under /tmp]
#   scripts/faults.sh --page DIR [--check]    generate docs/faults.md from DIR/faults.csv.xz (DIR in data/), or compare
#   scripts/faults.sh --merge DIR CSV...      merge tables of parts or machines into DIR/faults.csv
#
#   JOBS      cells at the same time   [default: one per four cores; with more, deadlines pass for lack of CPU time]
#   DEADLINE  time limit of every wait of the programs, in seconds; more on a shared machine   [default: 3]
#   ONLY      regular expression of cells, `program / fabric / fault`, such as 'shmem / (tcp|worst) / '   [default: all]
#
# A row contains program, fabric and fault; the permitted and the actual exit code; seconds from the fault to the exit
# of the last process; the message; leftovers (processes, files in /dev/shm and /tmp); and why a cell does not apply or
# was skipped. A cell fails if its exit code is another one, its message does not state the cause, it takes longer than
# its deadline plus two seconds, a row of its CSV is incomplete, or something is left. Failed cells are run once more
# without others. Each cell has its own namespaces, which needs root. Takes an hour on two cores. Cells of `same GPU`
# need a GPU and nvcc; run them with JOBS=1. Exit codes: 0 ok, 1 a cell failed, 2 usage.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ ${1:-} == --help || ${1:-} == -h ]]; then
    sed -n '2,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
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
[[ -x $ginlab ]] || { echo "faults.sh: no program $ginlab: run make build, or name another" >&2; exit 2; }
if ! setpriv --pdeathsig KILL unshare --mount --pid --ipc --net --fork true 2>/dev/null; then
    echo 'faults.sh: not run: cannot create namespaces here (needs root)' >&2
    exit 2
fi
mkdir -p "$folder"
echo "faults.sh: results go to $folder" >&2
# Outside /tmp and /dev/shm, because each cell has its own.
work=$(mktemp -d /var/tmp/ginlab-faults.XXXXXX)
# Also if the run is interrupted.
trap 'cp "$work/cells/faults.csv" "$folder/" 2>/dev/null; rm -rf "$work"' EXIT
trap 'kill "$runner" 2>/dev/null; exit 143' INT TERM
runner=
cp "$ginlab" scripts/faults.py "$work"
# The software NICs are in the directory of the program; cargo builds them in its directory deps.
beside=$(dirname "$ginlab")
cp "$beside/libsoft_efa.so" "$work" 2>/dev/null || cp "$beside/deps/libsoft_efa.so" "$work" 2>/dev/null || true
GINLAB_REPOSITORY=$PWD python3 "$work/faults.py" "$work/ginlab" "$work/cells" "${JOBS:-$((($(nproc) + 3) / 4))}" "${ONLY:-.}" &
runner=$!
wait "$runner" && code=0 || code=$?
exit "$code"
