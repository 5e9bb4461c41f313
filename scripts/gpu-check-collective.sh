#!/usr/bin/env bash
# Collectives over NVLink on all GPUs of one machine, with NCCL in turns where it is: scripts/gpu-check-collective.sh [GINLAB]
#
# Writes CSV and headers to $OUT (default: a new folder under /tmp). Bounded: each step has a limit of its own, all together stay below five
# minutes. Without two GPUs it runs the same on the emulated device, in sizes that suit it: then it checks the script and no card.
# Environment: NP (ranks; default all GPUs), GINLAB_NCCL (a libnccl), STEPS (a list; default all). NVLink multicast stays off.
set -u
cd "$(dirname "$0")/.." || exit
ginlab=${1:-target/release/ginlab}
OUT=${OUT:-$(mktemp -d /tmp/ginlab-collective.XXXXXX)}
mkdir -p "$OUT"
status=0
note() { echo "gpu-check-collective: $*" >&2; }
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}

gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU') || true
if [ "${gpus:-0}" -ge 2 ]; then device=gpu np=${NP:-$gpus}; else device=emulated np=${NP:-2}; note "fewer than two GPUs: the emulated device"; fi

# run LIMIT NAME arguments: one call, its CSV and what it said.
run() {
    local limit=$1 name=$2
    shift 2
    if [ -n "${STEPS:-}" ] && [[ " $STEPS " != *" $name "* ]]; then return 0; fi
    note "$name"
    local start=$SECONDS
    timeout -k 5 "$limit" "$ginlab" collective -d "$device" --np "$np" --csv "$OUT/$name.csv" "$@" >"$OUT/$name.txt" 2>&1
    local ended=$?
    note "$name: $((SECONDS - start)) s"
    [ $ended -eq 0 ] || { note "$name ended with $ended: $(tail -1 "$OUT/$name.txt")"; status=1; }
    return $ended
}

both() { local list=; for one in "$@"; do list+=",gin-$one,nccl-$one"; done; echo "${list#,}"; }
all=$(both all-to-all all-gather reduce-scatter all-reduce broadcast)
three=$(both all-to-all all-gather all-reduce)

if [ "$device" = gpu ]; then
    # Every operation, type and place, right to the bit: by messages and by puts.
    run 60 checks --path nvlink --cases "$all" --type f32,bf16,f16 --place out-of-place,in-place --launch stream -b 1000 -e 4M -f 64 -n 3 -w 1 -r 1
    run 60 small --path nvlink --cases "$three" --launch graph,persistent -b 8 -e 8M -f 8 -n 100 -w 20 -r 7
    run 60 large --path nvlink --cases "$three" --launch graph -b 64M -e 512M -f 8 -n 20 -w 3 -r 5
    run 60 rest --path nvlink --cases "$(both reduce-scatter broadcast),nccl-send-recv" --launch stream,graph -b 8 -e 64M -f 64 -n 20 -r 3
    run 45 packets --path nvlink --cases gin-all-to-all --mode nbi,blocking --packet 16,256,4K,64K,1M,16M -b 16M -e 16M -n 3 -w 1 -r 3
    run 45 scopes --path nvlink --cases gin-all-to-all --launch persistent --scope thread,warp,block -b 16 -e 16M -f 16 -n 20 -r 3 --volume 256M
    run 45 rails --path rails -p tcp --cases gin-all-to-all,gin-all-reduce --launch stream -b 8 -e 1M -f 64 -n 20 -r 3
else
    run 60 checks --path nvlink --cases "$all" --type f32,bf16 --place out-of-place,in-place --launch stream,graph,persistent -b 1000 -e 64K -f 64 -n 2 -w 1 -r 1
    run 60 rails --path rails -p test:unordered --cases gin-all-to-all,gin-all-reduce --launch stream -b 1000 -e 64K -f 64 -n 2 -w 1 -r 1
fi
note "results: $OUT"
exit $status
