#!/usr/bin/env bash
# Runs every program over `worst`, the least ordered network that EFA permits: every signal rule, 2 to 4 ranks, thread,
# warp and block, many seeds.
#
#   scripts/worst-matrix.sh [GINLAB] [DIR]     DIR: for results [default: OUT, or new under /tmp]
#
#   SEEDS, FIRST  seeds per combination, first seed       [default: 20, 1]
#   JOBS          combinations at the same time, each on its own core   [default: number of cores]
#   DEVICE        emulated, or gpu: ranks are processes, because threads of a process would wait for each other's kernels;
#                 if they share a GPU, start CUDA MPS first, otherwise they are time-sliced by 2 ms [default: emulated]
#   ONLY          regular expression of programs          [default: all]
#   EVERY         N: only every N-th combination with a rule, with different seeds
#   WORST         further options of the network, such as watch=strict
#   LIMIT         seconds after which no combination starts; the others are counted as not run   [default: none]
#   LIST          1: only list the combinations
#
# Writes worst.csv (a row per combination: seeds, failures, a command that reproduces one), failures.txt (each failed
# seed with its error) and summary.txt. Exit codes: 0 ok, 1 a seed failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
seeds=${SEEDS:-20} first=${FIRST:-1} jobs=${JOBS:-$(nproc)} device=${DEVICE:-emulated} every=${EVERY:-1}

worst="worst:seed={seed}${WORST:+,$WORST}"
shmem=(p-latency put-latency get-latency put-bandwidth put-signal-bandwidth get-bandwidth signal-ping-pong put-signal-ping-pong
    message-ping-pong barrier-all all-to-all)
# Programs that check every byte.
orders=(signal-order data-order)
collectives=(gin-all-to-all gin-all-gather gin-reduce-scatter gin-all-reduce gin-broadcast)
combinations() {
    local np rule scope case bytes block
    block='--grid 2 --block 33'
    for rule in count own drain sequence; do
        for np in 2 3 4; do
            local rails="--np $np --path rails -p $worst --rule $rule"
            for scope in thread warp block; do
                for case in "${shmem[@]}"; do
                    echo "shmem -d $device $rails --scope $scope --cases $case $block -b 520 -e 520 -n 3 -w 1 -r 1 --volume 4K"
                done
                # One iteration, because a later one transfers the same bytes. An exchange with puts.
                for case in put-signal-ping-pong 'all-to-all --message-limit 64'; do
                    echo "shmem -d $device $rails --scope $scope --cases $case $block -b 520 -e 520 -n 1 -w 0 -r 1"
                done
                # Puts with one transfer and with several, under libfabric's strict rules.
                for case in "${orders[@]}"; do
                    echo "shmem -d $device $rails --scope $scope --cases $case $block -n 12 -r 1"
                    echo "shmem -d $device ${rails/$worst/$worst,longest=500,delay=500,watch=strict} --scope $scope --cases $case $block -n 12 -r 1"
                done
                # With messages and with puts.
                bytes=$((np % 2 ? 4096 : 64))
                for case in "${collectives[@]}"; do
                    echo "collective -d $device $rails --scope $scope --cases $case --place out-of-place,in-place --launch persistent --block 33 -b $bytes -e $bytes --message-limit 1K -n 3 -w 1 -r 1"
                done
            done
            for case in host-write p block row resident; do
                echo "jacobi -d $device $rails --exchange $case --nx 64 --ny 16 -n 8 -r 1"
            done
            echo "jacobi -d $device $rails --exchange row --sync barrier --nx 64 --ny 16 -n 8 -r 1"
            echo "jacobi -d $device ${rails/$worst/$worst,watch=strict} --exchange resident --nx 64 --ny 16 -n 8 -r 1"
        done
        # More signalled puts in flight than a target's account has slots.
        echo "shmem -d $device --np 2 --path rails -p $worst,longest=3000 --rule $rule --scope thread --cases signal-order --grid 16 --block 33 -n 1200 -r 1"
        # Two nodes: rails between them, memory inside.
        for scope in thread warp block; do
            for case in "${collectives[@]}" 'gin-all-to-all --route gathered'; do
                echo "collective -d $device --np 4 --node-size 2 -p $worst --rule $rule --scope $scope --cases $case --launch persistent --block 33 -b 4096 -e 4096 --message-limit 1K -n 3 -w 1 -r 1"
            done
        done
    done
    for np in 2 3 4; do
        # Programs that pair ranks.
        if ((np != 3)); then
            echo "write -d emulated --np $np -p $worst --rails 1,2 -b 64 -e 256K -f 64 -n 20 -r 1"
            echo "sendrecv -d emulated --np $np -p $worst --rails 1,2 -b 64 -e 64K -f 32 -n 20 -r 1"
        fi
        echo "all2all -d emulated --np $np -p $worst --rails 1,2 -b 64 -e 64K -f 32 -n 10"
    done
    # A short ring keeps the kernel from running ahead of a proxy on the same core.
    for case in quiet nbi-batch=4 'nbi --ring-slots 8' 'nbi --scope thread'; do
        echo "proxy -d $device -p $worst --rails 1,2 --mode $case --grid 2 --block 33 -b 64 -e 64K -f 32 -n 12 -w 2 -r 1 --window 4"
    done
    # Every unit and every kind of count, with other tokens each round; only over rails, and with nodes. Last, so that
    # the numbering of the combinations above stays.
    local tokens='--unit expert,rank,node --count signal,word,immediate --hidden 64 --tokens 6 --experts 24 --topk 3 --grid 2 --block 33 -r 0 --check-rounds 5'
    for rule in count own drain sequence; do
        for scope in thread warp block; do
            for np in 2 3 4; do
                echo "moe -d $device --np $np --path rails -p $worst --rule $rule --scope $scope $tokens"
            done
            echo "moe -d $device --np 4 --node-size 2 -p $worst,delay=500,watch=strict --rule $rule --scope $scope $tokens --batch 4"
        done
        echo "moe -d $device --np 8 --node-size 2 -p $worst --rule $rule --scope warp $tokens"
    done
    for rule in count own drain sequence; do
        echo "shmem -d $device --np 2 --path rails -p $worst --rule $rule --cases put-latency-loaded --block 33 -b 520 -e 4K -n 20 -w 1 -r 1 --volume 1M"
    done
}
chosen() { combinations | grep -E "^(${ONLY:-.*}) "; }
if [[ -n ${LIST:-} ]]; then
    chosen
    exit
fi

ginlab=$(realpath "${1:-target/release/ginlab}") || exit 2
out=${2:-${OUT:-$(mktemp -d /tmp/ginlab-worst.XXXXXX)}}
mkdir -p "$out/parts"

# one NUMBER COMMAND: soaks one combination.
# shellcheck disable=SC2317  # xargs calls it
one() {
    local number=$1 code core run
    shift
    if [[ -n ${LIMIT:-} ]] && (($(date +%s) - began >= LIMIT)); then
        echo "$*" >"$out/parts/$number.late"
        return
    fi
    core=$((10#$number % $(nproc)))
    # With EVERY, each combination starts at another seed; otherwise only the first few seeds would be used.
    if ((every > 1)); then first=$((first + 10#$number * seeds)); fi
    run="$ginlab soak --first $first --seeds $seeds --no-header --csv $out/parts/$number.csv --"
    if [[ $device == gpu ]]; then run="processes $number"; fi
    # shellcheck disable=SC2086,SC2048  # the command is words
    timeout -k 5 "${EACH:-3600}" taskset -c "$core" bash -c "$run \"\$@\"" run $* >"$out/parts/$number.out" 2>"$out/parts/$number.err"
    code=$?
    if ((code)); then echo "ended with $code: $*" >>"$out/parts/$number.err"; else rm -f "$out/parts/$number.err"; fi
    rm -f "$out/parts/$number.out" "$out/parts/$number.header.json"
}
# shellcheck disable=SC2317  # called by name
# processes NUMBER COMMAND: the same with processes as ranks; writes its own kind of row.
processes() {
    local number=$1 seed failed=0 one=
    shift
    for ((seed = first; seed < first + seeds; seed++)); do
        one=${*//\{seed\}/$seed}
        # shellcheck disable=SC2086
        "$ginlab" $one --no-header >/dev/null 2>"$out/parts/$number.said" || {
            failed=$((failed + 1))
            echo "seed $seed: $(tail -n 1 "$out/parts/$number.said"): ginlab $one" >&2
        }
    done
    rm -f "$out/parts/$number.said"
    printf 'schema,case,seeds,wrong,command\n1,%s,%d,%d,"%s"\n' "$1" "$seeds" "$failed" "$*" >"$out/parts/$number.csv"
    ((failed == 0))
}
began=$(date +%s)
export -f one processes
export ginlab out seeds first began device every
chosen | awk -v every="$every" 'NR % every == 0 || !/ --rule / { printf "%04d %s%c", NR, $0, 0 }' |
    xargs -0 -r -P "$jobs" -I{} bash -c 'one {}'

cat "$out"/parts/*.csv 2>/dev/null | awk '!/^schema,/ || !header++' >"$out/worst.csv"
cat "$out"/parts/*.err 2>/dev/null >"$out/failures.txt"
late=$(find "$out/parts" -name '*.late' | wc -l)
# Quoted fields contain commas.
read -r combos total failed < <(sed 's/"[^"]*"//g' "$out/worst.csv" | awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) n[$i] = i; next }
    { rows++; seeds += $n["seeds"]; failed += $n["wrong"] } END { print rows + 0, seeds + 0, failed + 0 }')
{
    "$ginlab" --version | head -n 1
    echo "combinations $combos, not run $late, seeds $total, failed $failed, lines of errors $(wc -l <"$out/failures.txt"), seconds $(($(date +%s) - began)), jobs $jobs, cores $(nproc)"
} | tee "$out/summary.txt"
rm -rf "$out/parts"
[[ $failed == 0 && ! -s $out/failures.txt ]]
