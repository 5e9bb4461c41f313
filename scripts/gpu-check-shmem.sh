#!/usr/bin/env bash
# Measures the device API on two GPUs of one machine, alternating with NVSHMEM if it is installed.
#
#   scripts/gpu-check-shmem.sh [GINLAB]
#
#   OUT           directory for CSV and headers   [default: new, under /tmp]
#   STEPS         list of steps                   [default: all]
#   NVSHMEM_HOME  see gpu-check-nvshmem.sh
#   MPIRUN        the mpirun for NVSHMEM
#
# Each step has a time limit; all take less than six minutes. With fewer than two GPUs it uses the emulated device with
# small sizes, which only tests the script. Exit codes: 0 ok, 1 a step failed.
set -u
cd "$(dirname "$0")/.." || exit
program=shmem
# shellcheck source=scripts/gpu-check-program.sh
source scripts/gpu-check-program.sh
if [ "${gpus:-0}" -ge 2 ]; then device=gpu; else device=emulated; note "fewer than two GPUs: the emulated device"; fi

# shellcheck source=scripts/gpu-check-nvshmem.sh
source scripts/gpu-check-nvshmem.sh
baseline=()
if [ "$device" = gpu ]; then
    nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
    if compile_nvshmem "$OUT/nvshmem-baseline" "$OUT/nvcc.txt"; then
        baseline=(--nvshmem "$(nvshmem_command "$OUT/nvshmem-baseline" "$OUT/nvshmem.txt")")
    else
        note "no baseline: $(tail -1 "$OUT/nvcc.txt")"
    fi
fi

if [ "$device" = gpu ] && [ -n "${nvcc:-}" ]; then
    # Copy bandwidth of one block.
    if timeout 60 "$nvcc" -arch=sm_90 -O3 -std=c++17 experiments/shmem/baseline/one_block_copy.cu -o "$OUT/one-block-copy" 2>"$OUT/nvcc-copy.txt" &&
        timeout 60 "$OUT/one-block-copy" >"$OUT/one-block-copy.txt" 2>>"$OUT/nvcc-copy.txt"; then
        rm -f "$OUT/nvcc-copy.txt"
    else
        note "one_block_copy.cu did not run: $OUT/nvcc-copy.txt"
    fi
    rm -f "$OUT/one-block-copy"
fi

if [ "$device" = gpu ]; then
    turns=(-n 1000 -w 100 -r 5)
    # Without the baseline if it does not run here.
    if [ ${#baseline[@]} -gt 0 ] && ! run 60 try --cases signal-ping-pong -n 100 -r 1 -t 20 "${baseline[@]}"; then
        note "NVSHMEM does not run here: $(tail -1 "$OUT/nvshmem.txt" 2>/dev/null)"
        baseline=()
        status=0
    fi
    # Every call in every scope, as between two PEs of one GPU.
    GPUS=2 STEPS=calls,random SEEDS=${SEEDS:-1} SHAPES=${SHAPES:-100} OUT=$OUT/calls LIMIT=250 scripts/gpu-check-one-gpu.sh "$ginlab" || status=1
    run 45 nvlink-all-to-all --path nvlink "${turns[@]}" "${baseline[@]}" --cases all-to-all -b 8 -e 1M -f 8 --block 256
    run 60 nvlink-bandwidth --path nvlink -n 4 -r 4 "${baseline[@]}" --volume 4G --no-check \
        --cases put-bandwidth,get-bandwidth -b 512M -e 512M --grid 1,8,32,128 --block 256,1024
    run 45 rails-tcp --path rails --provider tcp -n 300 -w 30 -r 3 \
        --cases p-latency,signal-ping-pong,put-signal-ping-pong,barrier-all,put-bandwidth,put-signal-bandwidth -b 8 -e 64K -f 8 --grid 1,8 --volume 16M
    for rule in count own drain sequence; do
        run 30 "rails-model-$rule" --path rails --provider model:p5 --rails 4 --rule "$rule" -n 200 -w 20 -r 3 \
            --cases put-bandwidth,put-signal-bandwidth -b 64 -e 64K -f 32 --grid 1,8,132 --block 64 --volume 16M
    done
else
    turns=(-n 20 -w 2 -r 2 --block 64 --volume 1M -e 4K)
    run 60 memory "${turns[@]}" --path nvlink
    run 60 rails "${turns[@]}" --path rails --provider worst
fi
note "results: $OUT"
exit $status
