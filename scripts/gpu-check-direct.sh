#!/usr/bin/env bash
# Checks and measures kernels that drive a NIC's queue themselves, on one GPU with software NICs: puts compared with
# ring and proxy and with the lower bound, every fault of the queue in kernels of 1 and 132 blocks, and programs with
# --path direct.
#
#   scripts/gpu-check-direct.sh [GINLAB]
#
#   OUT    directory for CSV and headers   [default: new, under /tmp]
#   STEPS  list of: latency, rate, queues, faults, cases, programs, rules   [default: all]
#
# Each step has a time limit; all take less than six minutes. Without a GPU it uses the emulated device with small
# sizes, which only tests the script. Exit codes: 0 ok, 1 a step failed.
set -u
cd "$(dirname "$0")/.." || exit
program=direct
# shellcheck source=scripts/gpu-check-program.sh
source scripts/gpu-check-program.sh
if [ "${gpus:-0}" -ge 1 ]; then device=gpu; else device=emulated; note "no GPU: the emulated device"; fi

if [ "$device" = gpu ]; then
    grids=1,8,32,132 wide=132 long=(-n 1000) repeats=(--repeats 10) threads=8
else
    grids=1,2 wide=4 long=(-n 20) repeats=(--repeats 2) threads=1
fi

if wanted latency; then
    # Put and wait, compared with the round trip of a flag.
    run 60 latency --mode quiet --grid 1 --block 1,8,32 --cases direct,counter,ring "${long[@]}" --repeats 20
    run 60 latency-grid --mode quiet --grid "$grids" --block 1,32 --cases direct,ring "${long[@]}" "${repeats[@]}"
fi
if wanted rate; then
    # 1, 8 and 32 requests per doorbell on one queue; the lanes of a warp share one.
    run 60 rate --mode nbi --grid "$grids" --block 1,8,32 --cases direct,ring -n 500 "${repeats[@]}"
    run 30 rate-counter --mode nbi --grid 1 --block 1,8,32 --cases direct,counter "${long[@]}" "${repeats[@]}"
    # Cost of the NIC's limit of requests per doorbell.
    run 30 rate-batch --mode nbi --grid 1,8 --block 32 --max-batch 32 --cases direct "${long[@]}" "${repeats[@]}"
    run 45 rate-unlimited --mode nbi --grid "$grids" --block 32 --max-batch 1024 --cases direct -n 500 "${repeats[@]}"
fi
if wanted queues; then
    run 45 queues --mode nbi --grid 8 --block 1,8,32 --queues 1,2,4,8 --threads $threads --cases direct,counter,ring "${long[@]}" "${repeats[@]}"
    run 30 queues-wide --mode nbi --grid 32,128 --block 32 --queues 8 --threads $threads --cases direct,ring -n 500 "${repeats[@]}"
    run 30 queues-quiet --mode quiet --grid 8 --block 1,32 --queues 8 --threads $threads --cases direct,counter "${long[@]}" "${repeats[@]}"
fi

# ends NAME CODE TEXT ARGUMENTS...: a run that must exit with this code and message in time. Appends a row to
# faults.csv: name, blocks, exit code, seconds, last line.
ends() {
    local name=$1 code=$2 words=$3 text got began
    shift 3
    began=${EPOCHREALTIME/./}
    timeout -k 5 30 "$ginlab" direct -d "$device" --no-header --mode nbi -n "${turns:-40}" --repeats 1 --block 32 "$@" >/dev/null 2>"$OUT/said.txt"
    got=$?
    text=$(tail -n 1 "$OUT/said.txt")
    row "$name" "$got" "$began" "$text"
    [[ $got == "$code" && $text == *"$words"* ]] && return
    note "$name of $grid blocks: code $got instead of $code, or not \"$words\": ${text:0:200}"
    status=1
}
row() { printf '%s,%s,%s,%d.%02d,"%s"\n' "$1" "$grid" "$2" $(((${EPOCHREALTIME/./} - $3) / 1000000)) $(((${EPOCHREALTIME/./} - $3) / 10000 % 100)) "${4//\"/}" >>"$OUT/faults.csv"; }

# killed: kills one of two PEs that put to each other; the other one must exit and name it.
killed() {
    local began text=$OUT/killed.txt job last below got line
    timeout -k 5 40 "$ginlab" shmem --path direct -p efa-verbs/soft:fast -d "$device" --np 2 --cases put-signal-ping-pong -b 8 -e 8 -n 200000 -r 99 -t 5 \
        --grid "$grid" --no-header --csv - >"$text" 2>&1 &
    job=$!
    sleep 6
    last=$(pgrep -P "$(pgrep -P $job | head -1)" | tail -1)
    below=$(pgrep -P "$last" | tail -1)
    began=${EPOCHREALTIME/./}
    kill -KILL "${below:-$last}" 2>/dev/null
    wait $job
    got=$?
    line=$(grep -a ginlab: "$text" | tail -1)
    row killed-peer $got "$began" "$line"
    [[ $got == 1 && $line == *"rank 1"* ]] && return
    note "killed-peer of $grid blocks: code $got: $line"
    status=1
}
if wanted faults; then
    start=$SECONDS
    echo 'fault,blocks,exit,seconds,line' >"$OUT/faults.csv"
    for grid in 1 $wide; do
        of=(--cases direct --grid "$grid") each=(--grid "$grid" --queues "$grid")
        for fault in flushed:1 queue-pair-error:2 unsupported-operation:3 bad-address-handle:4 bad-local-key:5 bad-length:6 bad-remote-address:7 \
            remote-aborted:8 bad-remote-queue-pair:9 receiver-not-ready:10 remote-bad-length:11 remote-bad-status:12 unresponsive:13 \
            unknown-peer:14 unreachable:15 feature-mismatch:18; do
            name=${fault%:*} code=${fault#*:}
            ends "$name" 1 "of $grid blocks): fabric error: queue 0: request 30: $name ($code)" "${of[@]}" --fault "$name@30"
        done
        ends completion-lost 124 'request 30 and those after it have not completed' "${of[@]}" --fault lose@30 --timeout 1
        ends card-dead 124 'request 30 and those after it have not completed' "${of[@]}" --fault dead@30 --timeout 1
        ends completion-twice 1 'which was not in flight' "${of[@]}" --fault twice@30
        ends overrun 1 'the completion queue overran: request 30' "${of[@]}" --fault overrun@30 --timeout 1
        ends doorbell-back 1 'moved back by' "${of[@]}" --fault back@30
        turns=4000 ends batch-too-large 1 'is written, but the doorbell is at' "${of[@]}" --fault batch@8
        ends counter-failed 1 'request 30: flushed (1)' --cases counter "${each[@]}" --fault flushed@30 --timeout 5
        ends vendor 124 'no cause is known' --cases vendor "${each[@]}" --fault flushed@30 --timeout 1
        # Not faults: wraparound of request ids at 2^16 and of counters at 2^31.
        ends ids-go-round 0 '' "${of[@]}" --begun 65000
        ends counter-goes-round 0 '' --cases direct,counter "${each[@]}" --begun $((2147483648 - 100))
        ends counter-failed-there 1 "request 2147483660: unreachable (15)" --cases counter "${each[@]}" --begun $((2147483648 - 10)) --fault unreachable@2147483660 --timeout 5
        killed
    done
    note "faults: $((SECONDS - start)) s, $(($(wc -l <"$OUT/faults.csv") - 1)) ends"
fi

# over NAME LIMIT PROGRAM ARGUMENTS...: a program with two PEs.
over() {
    local name=$1 limit=$2 start=$SECONDS ended
    shift 2
    timeout -k 5 "$limit" "$ginlab" "$@" -d "$device" --np 2 --csv "$OUT/$name.csv" >"$OUT/$name.txt" 2>&1
    ended=$?
    note "$name: $((SECONDS - start)) s"
    [ $ended -eq 0 ] || { note "$name ended with $ended: $(tail -1 "$OUT/$name.txt")"; status=1; }
}
if wanted cases; then
    # CPU-initiated writes, ring and proxy, and the NICs' queues, alternating and verified; then small puts without
    # verification, to time only the path.
    if [ "$device" = gpu ]; then small=(-n 200 -r 5); else small=(-n 5 -r 1); fi
    over cases 60 proxy -p efa-verbs/soft:p5 --cases cpu-write,put,direct -b 64 -e 1M -f 16 "${small[@]}" --rails 1,4 --mode quiet,nbi --check -t 20
    over cases-small 45 proxy -p efa-verbs/soft:fast --cases cpu-write,put,direct -b 64 -e 64 "${small[@]}" --rails 1 --grid 1,8 --block 32 \
        --mode quiet,nbi --no-check -t 20
fi
if wanted rules; then
    # Consumer of arrivals: a CPU thread, the kernel, or the NIC's counter (p5en).
    if [ "$device" = gpu ]; then turns=(-n 300 -w 30 -r 3); else turns=(-n 5 -w 1 -r 1); fi
    for rule in count kernel counter; do
        over "rule-$rule" 45 shmem --path direct -p efa-verbs/soft:p5en --rule $rule "${turns[@]}" --block 128 -b 8 -e 4K -f 8 \
            --cases signal-ping-pong,put-signal-ping-pong,barrier-all,all-to-all
        over "rule-$rule-order" 45 shmem --path direct -p efa-verbs/soft:p5en,seed=5,reorder=32 --rule $rule --cases signal-order -n 200 -r 2 --grid 1 \
            --block 64 --scope thread,warp,block
        over "rule-$rule-collective" 45 collective --path direct -p efa-verbs/soft:p5en --rule $rule -b 8 -e 64K -f 16 -n 20 -w 3 -r 2 \
            --launch stream --cases gin-all-to-all,gin-all-reduce
    done
fi
if wanted programs; then
    if [ "$device" = gpu ]; then turns=(-n 300 -w 30 -r 3) cells=1024 iterations=100; else turns=(-n 5 -w 1 -r 1) cells=64 iterations=7; fi
    # shellcheck disable=SC2054  # one list of cases, with commas
    small=(--cases p-latency,put-latency,get-latency,signal-ping-pong,put-signal-ping-pong,message-ping-pong,barrier-all -b 8 -e 4K -f 8)
    for path in direct rails; do
        over "shmem-$path" 60 shmem --path $path -p efa-verbs/soft:fast "${turns[@]}" "${small[@]}" --block 128
        over "shmem-$path-rate" 45 shmem --path $path -p efa-verbs/soft:fast -n 5 -w 1 -r 3 --volume 4M \
            --cases put-bandwidth,put-signal-bandwidth -b 64 -e 4K -f 64 --grid 1,8 --block 64
        over "jacobi-$path" 45 jacobi --path $path -p efa-verbs/soft:fast -r 2 -n $iterations --nx $cells --exchange block,row,resident
        over "collective-$path" 45 collective --path $path -p efa-verbs/soft:fast -b 8 -e 64K -f 16 -n 20 -w 3 -r 2 --launch stream \
            --cases gin-all-to-all,gin-all-reduce
    done
    over shmem-order 45 shmem --path direct -p efa-verbs/soft:fast,seed=5,reorder=32 --cases signal-order,data-order -n 200 -r 2 --grid 1 \
        --block 64 --scope thread,warp,block
fi
note "results: $OUT"
exit $status
