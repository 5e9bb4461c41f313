#!/usr/bin/env bash
# Compares two builds on one machine by running them alternately, to detect a slowdown.
#
#   scripts/gate.sh BEFORE AFTER DIR [ROUNDS]     BEFORE, AFTER: two ginlab programs
#   STEPS='queue null'                            run only these steps
#
# Each round runs every step with both programs; the order changes every round. DIR gets before/ and after/ with one CSV
# per step and round, and compare.csv with the ratios of all rows. Uses the GPU if there is one; steps between GPUs need
# two. shmem and jacobi run two ranks: if they share a GPU, start CUDA MPS first. Exit codes: 0 ok, 1 failed, 2 usage.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if (($# < 3)); then
    sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
fi
declare -A binary=([before]=$1 [after]=$2)
folder=$3
rounds=${4:-3}
mkdir -p "$folder/before" "$folder/after"

device=emulated
gpus=0
if [[ -e /dev/nvidiactl || -e /proc/driver/nvidia/version ]]; then
    device=gpu
    gpus=$(find /proc/driver/nvidia/gpus -mindepth 1 -maxdepth 1 2>/dev/null | wc -l)
fi
steps=(queue null full-grid write shmem-rails shmem-mapped jacobi-rails jacobi-mapped)
if [[ -n ${STEPS:-} ]]; then read -ra steps <<<"$STEPS"; fi
# Many threads on few cores would take minutes.
grids='--grid 1 --block 32'
if [[ $device == gpu ]]; then grids='--grid 32,132 --block 32,256'; fi
if ((gpus >= 2)) && [[ -z ${STEPS:-} ]]; then steps+=(ipc collective); fi
turns='--block 32,256 -n 500 -w 50 -r 5'
field='--nx 1024 -n 500 -r 5'
if [[ $device == emulated ]]; then
    turns='--block 32 -n 100 -w 10 -r 5'
    field='--nx 64 -n 100 -r 5'
fi
calls=put-latency,put-bandwidth,put-signal-bandwidth,put-signal-ping-pong,message-ping-pong,barrier-all,all-to-all

arguments() { # arguments STEP
    case $1 in
    queue) echo "queue -d $device -a ticket -m nbi $grids -r 5" ;;
    null) echo proxy -d "$device" -p null -b 64 -e 64 --grid 1,132 --block 32 --mode quiet,nbi --window 16 --no-fill --no-check -r 10 ;;
    # All lanes of a full grid wait at the same time: the time between two passes of a worker of the emulated device.
    full-grid) echo proxy -d emulated -p null -b 64 -e 64 --grid 132 --block 1024 --scope thread --mode quiet,nbi --window 1 -n 20 -r 2 ;;
    write) echo write -d emulated -p tcp -b 64 -e 64K -f 8 --rails 1 --strategy single --window 64 --buffers 1 --bare -r 9 -n 20000 --volume 256M --pin ;;
    shmem-rails) echo "shmem -d $device --np 2 --path rails -p model:p5 --cases $calls --grid 1 -b 8 -e 4K -f 512 --volume 4M $turns" ;;
    shmem-mapped) echo "shmem -d $device --np 2 --path nvlink --cases $calls --grid 1 -b 8 -e 4K -f 512 --volume 4M $turns" ;;
    jacobi-rails) echo "jacobi -d $device --np 2 --path rails -p model:p5 --exchange block,row,resident $field --no-check" ;;
    jacobi-mapped) echo "jacobi -d $device --np 2 --path nvlink --exchange block,row,resident $field --no-check" ;;
    ipc) echo ipc -b 64K -e 1G -f 128 --grid 8,128 -o write -r 5 ;;
    collective) echo collective --path nvlink --cases gin-all-to-all,gin-all-gather,gin-all-reduce --launch graph -b 8 -e 64M -f 64 -n 50 -r 5 --no-check ;;
    esac
}

failures=0
one() { # one STEP ROUND SIDE
    local code=0
    # shellcheck disable=SC2046  # the arguments are words
    timeout 120 "${binary[$3]}" $(arguments "$1") --csv "$folder/$3/$1-$2.csv" >/dev/null 2>"$folder/$3/$1-$2.err" || code=$?
    if ((code)); then
        printf 'gate.sh: %s of %s failed with exit code %d: %s\n' "$1" "$3" "$code" "$(tail -n 1 "$folder/$3/$1-$2.err")" >&2
        failures=$((failures + 1))
    else
        rm -f "$folder/$3/$1-$2.err"
    fi
}
for ((round = 1; round <= rounds; round++)); do
    for step in "${steps[@]}"; do
        if ((round % 2)); then sides=(before after); else sides=(after before); fi
        for side in "${sides[@]}"; do one "$step" "$round" "$side"; done
    done
    printf 'gate.sh: round %d of %d done\n' "$round" "$rounds" >&2
done
"${binary[after]}" compare "$folder/before" "$folder/after" --csv "$folder/compare.csv"
exit $((failures > 0))
