#!/usr/bin/env bash
# Checks and measures mixture-of-experts dispatch and combine on one GPU with 2, 4 and 8 PEs, which share it through
# MPS. First every unit, count and path with verification on a small problem (same GPU, modelled p5, `worst`, software
# NICs through proxies and from the kernel), then the published problem.
#
#   scripts/gpu-check-moe.sh [GINLAB]
#
#   OUT    directory for CSV and headers   [default: new, under /tmp]
#   STEPS  list of steps                   [default: all]
#   PES    numbers of PEs                  [default: 2 4 8]
#   QUICK  1: only 2 PEs
#   RAILS  modelled cards per PE           [default: 4]
#
# Each step has a time limit; all take about 5 minutes. With two GPUs or more, `--path nvlink` uses NVLink. Without a
# GPU it uses the emulated device with small problems, which only tests the script. Exit codes: 0 ok, 1 a step failed.
set -u
cd "$(dirname "$0")/.." || exit
program=moe
# shellcheck source=scripts/gpu-check-program.sh
source scripts/gpu-check-program.sh
if [ "${gpus:-0}" -ge 1 ]; then device=gpu; else device=emulated; note "no GPU: the emulated device"; fi
pes=${PES:-2 4 8} rails=${RAILS:-4}
if [ -n "${QUICK:-}" ]; then pes=2; fi

# step LIMIT NAME ARGUMENTS...: runs the step if it is selected.
step() { if wanted "$2"; then run "$1" "$2" "${@:3}"; fi; }

verbs=efa-verbs/soft:fast,reorder=32
units=expert,rank,node counts=signal,word,immediate
small=(--hidden 256 --tokens 16 --experts 24 --topk 4 --block 64 -r 0 --check-rounds 6 --unit "$units" --count "$counts" -t 20)
if [ "$device" = gpu ]; then full=() timed=(-n 30 -w 5 -r 3) few=(-n 8 -w 2 -r 2); else full=(--hidden 512 --tokens 16 --block 64) timed=(-n 3 -w 1 -r 1) few=(-n 2 -w 1 -r 1); fi
for np in $pes; do
    node=$((np / 2))
    step 60 "check-mapped-$np" --np "$np" --path nvlink "${small[@]}" --scope thread,warp,block --type fp8,bf16
    step 60 "check-p5-$np" --np "$np" --path rails -p model:p5 --rails 2 "${small[@]}" --scope warp,block
    # Nodes of half of the PEs each.
    step 90 "check-worst-$np" --np "$np" --node-size "$node" -p worst:seed="$np" "${small[@]}"
    # Software NICs through verbs: through proxies, and with requests written by the kernel.
    step 60 "check-verbs-$np" --np "$np" --path rails -p "$verbs,seed=$np" "${small[@]}"
    step 60 "check-direct-$np" --np "$np" --path direct -p "$verbs,seed=$np" "${small[@]}" --scope thread,warp,block
done
for np in $pes; do
    step 40 "mapped-$np" --np "$np" --path nvlink "${full[@]}" "${timed[@]}" --unit "$units" --count "$counts"
    step 40 "mapped-scopes-$np" --np "$np" --path nvlink "${full[@]}" "${timed[@]}" --unit expert,rank --scope warp,block
done
# Fewer rounds: the CPU moves the bytes of modelled cards, and the heap is in host memory.
for np in $pes; do
    step 60 "p5-$np" --np "$np" --path rails -p model:p5 --rails "$rails" "${full[@]}" "${few[@]}" --unit "$units"
done
step 60 p5-counts-2 --np 2 --path rails -p model:p5 --rails "$rails" "${full[@]}" "${few[@]}" --unit "$units" --count "$counts"
for way in rails direct; do
    step 60 "verbs-$way-2" --np 2 --path $way -p efa-verbs/soft:p5 "${full[@]}" "${few[@]}" --unit "$units" --count word
done
if [ "$device" = gpu ]; then many=4096 wide=(); else many=256 wide=(--hidden 512 --block 64); fi
# Many tokens, and a skewed choice of experts.
for unit in rank node expert; do
    step 60 "many-$unit" --np 2 --path nvlink "${wide[@]}" --tokens $many --unit $unit --count word --type fp8,bf16 -n 5 -w 1 -r 2 --check-rounds 1
done
step 45 skew --np 4 --path nvlink "${full[@]}" "${timed[@]}" --unit "$units" --count word --skew 1
step 45 skew-p5 --np 4 --path rails -p model:p5 --rails "$rails" "${full[@]}" "${few[@]}" --unit "$units" --skew 1
for rule in own drain sequence; do
    step 45 "p5-rule-$rule" --np 2 --path rails -p model:p5 --rails "$rails" "${full[@]}" "${few[@]}" --unit expert,rank --rule "$rule"
done
note "results: $OUT"
exit $status
