# shellcheck shell=bash
# Common parts of gpu-check-{collective,direct,jacobi,moe,shmem,worst}.sh. Sourced from the repository's root with
# `program` set; the sourcing script sets `device`.
#
#   OUT    directory for results [default: new, under /tmp]
#   STEPS  list of steps         [default: all]

# shellcheck disable=SC2154,SC2034  # program and device are theirs; they read gpus and status
ginlab=${1:-target/release/ginlab}
OUT=${OUT:-$(mktemp -d "/tmp/ginlab-$program.XXXXXX")}
mkdir -p "$OUT"
status=0
note() { echo "gpu-check-$program: $*" >&2; }
# NVLink multicast stays off.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU') || true

# Returns whether the list STEPS is empty or contains this step.
wanted() { [ -z "${STEPS:-}" ] || [[ " ${STEPS//,/ } " == *" $1 "* ]]; }

# run LIMIT NAME ARGUMENTS...: one call; writes its CSV and its output.
run() {
    local limit=$1 name=$2 start=$SECONDS ended
    shift 2
    timeout -k 5 "$limit" "$ginlab" "$program" -d "$device" --csv "$OUT/$name.csv" "$@" >"$OUT/$name.txt" 2>&1
    ended=$?
    note "$name: $((SECONDS - start)) s"
    [ $ended -eq 0 ] || { note "$name ended with $ended: $(tail -1 "$OUT/$name.txt")"; status=1; }
    return $ended
}
