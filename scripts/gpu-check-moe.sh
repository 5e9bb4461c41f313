#!/usr/bin/env bash
# Dispatch and combine on one GPU with 2, 4 and 8 PEs, which MPS runs side by side: scripts/gpu-check-moe.sh [GINLAB]
#
# Writes CSV and headers to $OUT (default: a new folder under /tmp). First every unit, count and path is checked to the byte on a small problem (same
# GPU, modelled p5, the worst network, cards in software by proxies and by the kernel itself); then the published problem is timed. Bounded: each step
# has a limit of its own, all together about 5 minutes. With two GPUs or more `--path nvlink` goes over NVLink. Without a GPU it runs the same on the emulated device with small problems: then it checks the script and no card.
# Environment: STEPS (a list; default all), QUICK=1 (2 PEs alone), PES (default "2 4 8"), RAILS (modelled cards of a PE; default 4).
set -u
cd "$(dirname "$0")/.." || exit
program=moe
# shellcheck source=scripts/gpu-check-program.sh
source scripts/gpu-check-program.sh
if [ "${gpus:-0}" -ge 1 ]; then device=gpu; else device=emulated; note "no GPU: the emulated device"; fi
pes=${PES:-2 4 8} rails=${RAILS:-4}
if [ -n "${QUICK:-}" ]; then pes=2; fi

# step LIMIT NAME arguments: a run, if it is wanted.
step() { if wanted "$2"; then run "$1" "$2" "${@:3}"; fi; }

verbs=efa-verbs/soft:fast,reorder=32
units=expert,rank,node counts=signal,word,immediate
small=(--hidden 256 --tokens 16 --experts 24 --topk 4 --block 64 -r 0 --check-rounds 6 --unit "$units" --count "$counts" -t 20)
if [ "$device" = gpu ]; then full=() timed=(-n 30 -w 5 -r 3) few=(-n 8 -w 2 -r 2); else full=(--hidden 512 --tokens 16 --block 64) timed=(-n 3 -w 1 -r 1) few=(-n 2 -w 1 -r 1); fi
for np in $pes; do
    node=$((np / 2))
    step 60 "check-mapped-$np" --np "$np" --path nvlink "${small[@]}" --scope thread,warp,block --type fp8,bf16
    step 60 "check-p5-$np" --np "$np" --path rails -p model:p5 --rails 2 "${small[@]}" --scope warp,block
    # Nodes of half of the PEs each, where that is more than one.
    step 90 "check-worst-$np" --np "$np" --node-size "$node" -p worst:seed="$np" "${small[@]}"
    # Cards in software behind verbs: by proxies, and with requests that the kernel writes itself.
    step 60 "check-verbs-$np" --np "$np" --path rails -p "$verbs,seed=$np" "${small[@]}"
    step 60 "check-direct-$np" --np "$np" --path direct -p "$verbs,seed=$np" "${small[@]}" --scope thread,warp,block
done
for np in $pes; do
    step 40 "mapped-$np" --np "$np" --path nvlink "${full[@]}" "${timed[@]}" --unit "$units" --count "$counts"
    step 40 "mapped-scopes-$np" --np "$np" --path nvlink "${full[@]}" "${timed[@]}" --unit expert,rank --scope warp,block
done
# Modelled cards move bytes by the CPU, and the heap is host memory: fewer rounds.
for np in $pes; do
    step 60 "p5-$np" --np "$np" --path rails -p model:p5 --rails "$rails" "${full[@]}" "${few[@]}" --unit "$units"
done
step 60 p5-counts-2 --np 2 --path rails -p model:p5 --rails "$rails" "${full[@]}" "${few[@]}" --unit "$units" --count "$counts"
for way in rails direct; do
    step 60 "verbs-$way-2" --np 2 --path $way -p efa-verbs/soft:p5 "${full[@]}" "${few[@]}" --unit "$units" --count word
done
if [ "$device" = gpu ]; then many=4096 wide=(); else many=256 wide=(--hidden 512 --block 64); fi
# Many tokens, and experts of which some are preferred.
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
