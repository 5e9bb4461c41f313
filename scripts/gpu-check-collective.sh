#!/usr/bin/env bash
# Collectives over NVLink on all GPUs of one machine, with NCCL in turns where it is: scripts/gpu-check-collective.sh [GINLAB]
#
# Writes CSV and headers to $OUT (default: a new folder under /tmp). Bounded: each step has a limit of its own. Two H200 take about 90 s, four
# about as long. Without two GPUs it runs the same on the emulated device, in sizes that suit it: then it checks the script and no card.
# Environment: NP (ranks; default all GPUs), GINLAB_NCCL (a libnccl), STEPS (a list; default all). NVLink multicast stays off.
set -u
cd "$(dirname "$0")/.." || exit
program=collective
# shellcheck source=scripts/gpu-check-program.sh
source scripts/gpu-check-program.sh
if [ "${gpus:-0}" -ge 2 ]; then device=gpu np=${NP:-$gpus}; else device=emulated np=${NP:-2}; note "fewer than two GPUs: the emulated device"; fi

# step LIMIT NAME arguments: a run, if it is wanted.
step() { if wanted "$2"; then run "$1" "$2" --np "$np" "${@:3}"; fi; }

both() { local list=; for one in "$@"; do list+=",gin-$one,nccl-$one"; done; echo "${list#,}"; }
all=$(both all-to-all all-gather reduce-scatter all-reduce broadcast)
three=$(both all-to-all all-gather all-reduce)
mine=gin-all-to-all,gin-all-gather,gin-all-reduce

if [ "$device" = gpu ]; then
    # Every operation, type and place, right to the bit: by words, messages and puts. The first call: the driver compiles.
    step 60 checks --path nvlink --cases "$all" --type f32,bf16,f16 --place out-of-place,in-place --launch graph -b 1000 -e 4M -f 64 -n 3 -w 1 -r 1
    # By size, both in graphs, in turns; and inside a kernel.
    step 40 small --path nvlink --cases "$three" --launch graph,persistent -b 8 -e 16M -f 2 -n 100 -w 20 -r 5
    # What it is worth that launches overlap.
    step 20 apart --path nvlink --cases "$mine" --launch graph --overlap no -b 8 -e 8M -f 8 -n 100 -w 20 -r 5
    step 30 large --path nvlink --cases "$three" --launch graph -b 64M -e 512M -f 8 -n 20 -w 3 -r 5
    step 20 rest --path nvlink --cases "$(both reduce-scatter broadcast),nccl-send-recv" --launch graph -b 8 -e 64M -f 64 -n 20 -r 3
    # Inside a kernel and on a stream, as the study has its "device" and "host".
    step 20 host --path nvlink --cases gin-all-to-all,nccl-all-to-all --launch stream -b 16 -e 64M -f 4 -n 100 -w 20 -r 3
    step 20 scopes --path nvlink --cases gin-all-to-all --launch persistent --scope thread,warp,block --grid 1 -b 16 -e 1M -f 16 -n 20 -r 3 --volume 64M
    # Messages of 16 B to 16 MiB, by one block, waited for one by one or all together.
    step 20 packets --path nvlink --cases gin-all-to-all --launch stream --mode nbi,blocking --grid 1 --packet 16,256,4K,64K -b 2M -e 2M -n 3 -w 1 -r 3
    step 20 packets-large --path nvlink --cases gin-all-to-all --launch stream --mode nbi,blocking --packet 64K,1M,16M -b 32M -e 32M -n 10 -w 1 -r 3
    for rails in tcp model:p5; do
        name=rails-${rails#model:}
        over=(--path rails -p "$rails" --rails 4 --cases gin-all-to-all --launch stream --mode 'nbi,blocking' --scope 'thread,warp,block' --grid 1)
        step 30 "$name" "${over[@]}" --packet 16,256,4K,64K -b 128K -e 128K -n 3 -w 1 -r 3
        step 30 "$name-large" "${over[@]}" --packet 64K,1M,16M -b 32M -e 32M -n 2 -w 1 -r 3
    done
else
    step 60 checks --path nvlink --cases "$all" --type f32,bf16 --place out-of-place,in-place --launch stream,graph,persistent -b 1000 -e 64K -f 64 -n 2 -w 1 -r 1
    step 60 rails --path rails -p worst --cases gin-all-to-all,gin-all-reduce --launch stream -b 1000 -e 64K -f 64 -n 2 -w 1 -r 1
fi
note "results: $OUT"
exit $status
