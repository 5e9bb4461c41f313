#!/usr/bin/env bash
# Measures collectives over NVLink on all GPUs of one machine, alternating with NCCL if it is installed.
#
#   scripts/gpu-check-collective.sh [GINLAB]
#
#   OUT          directory for CSV and headers   [default: new, under /tmp]
#   NP           number of ranks                 [default: number of GPUs]
#   GINLAB_NCCL  path of libnccl
#   STEPS        list of steps                   [default: all]
#   SEED         seed of random shapes           [default: 1]
#
# Each step has a time limit; two or four H200 take about 150 s. NVLink multicast stays off. With fewer than two GPUs it
# uses the emulated device with small sizes, which only tests the script. Exit codes: 0 ok, 1 a step failed.
set -u
cd "$(dirname "$0")/.." || exit
program=collective
# shellcheck source=scripts/gpu-check-program.sh
source scripts/gpu-check-program.sh
if [ "${gpus:-0}" -ge 2 ]; then device=gpu np=${NP:-$gpus}; else device=emulated np=${NP:-2}; note "fewer than two GPUs: the emulated device"; fi

# step LIMIT NAME ARGUMENTS...: runs the step if it is selected.
step() { if wanted "$2"; then run "$1" "$2" --np "$np" "${@:3}"; fi; }

both() { local list=; for one in "$@"; do list+=",gin-$one,nccl-$one"; done; echo "${list#,}"; }
all=$(both all-to-all all-gather reduce-scatter all-reduce broadcast)
three=$(both all-to-all all-gather all-reduce)
mine=gin-all-to-all,gin-all-gather,gin-all-reduce

if [ "$device" = gpu ]; then
    # Every operation, type and place, compared bit by bit, with words, messages and puts. Also compiles the kernels.
    step 60 checks --path nvlink --cases "$all" --type f32,bf16,f16 --place out-of-place,in-place --launch graph -b 1000 -e 4M -f 64 -n 3 -w 1 -r 1
    # By size, ginlab and NCCL alternating, in graphs; and inside a kernel.
    step 40 small --path nvlink --cases "$three" --launch graph,persistent -b 8 -e 16M -f 2 -n 100 -w 20 -r 5
    # Effect of overlapping launches.
    step 20 apart --path nvlink --cases "$mine" --launch graph --overlap no -b 8 -e 8M -f 8 -n 100 -w 20 -r 5
    step 30 large --path nvlink --cases "$three" --launch graph -b 64M -e 512M -f 8 -n 20 -w 3 -r 5
    step 100 random --path nvlink --random 100 --seed "${SEED:-1}" -n 10 -w 3 -r 3
    step 20 rest --path nvlink --cases "$(both reduce-scatter broadcast),nccl-send-recv" --launch graph -b 8 -e 64M -f 64 -n 20 -r 3
    # Inside a kernel and on a stream: "device" and "host" of the published study.
    step 20 host --path nvlink --cases gin-all-to-all,nccl-all-to-all --launch stream -b 16 -e 64M -f 4 -n 100 -w 20 -r 3
    step 20 scopes --path nvlink --cases gin-all-to-all --launch persistent --scope thread,warp,block --grid 1 -b 16 -e 1M -f 16 -n 20 -r 3 --volume 64M
    # Messages of 16 B to 16 MiB by one block; waits after each or once.
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
