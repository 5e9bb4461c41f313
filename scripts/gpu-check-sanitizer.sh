#!/usr/bin/env bash
# Runs compute-sanitizer over small sweeps of every kernel, with full and partial warps; no tool may report anything.
#
#   scripts/gpu-check-sanitizer.sh [DIR]     reports go to DIR/sanitizer-TOOL.txt [default: OUT, or .]
#
#   GINLAB  program                             [default: target/release/ginlab]
#   TOOLS   tools, such as "memcheck synccheck" [default: all]
#   ONLY    regular expression of sweep names   [default: all sweeps]
#
# Needs a GPU and CUDA's compute-sanitizer; does nothing without the latter. Takes about a minute per tool. With one GPU
# the programs run only over rails, with two also over NVLink. Exit codes: 0 ok, 1 a sweep failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

ginlab=${GINLAB:-target/release/ginlab}
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
out=${1:-${OUT:-.}}
tools=${TOOLS:-memcheck initcheck synccheck racecheck}
failures=0

sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
if [[ -z $sanitizer ]]; then
    echo '== sanitizer: skipped: no compute-sanitizer'
    exit 0
fi

# sanitize TOOL NAME ARGUMENTS...: one small sweep, which must succeed without a report of the tool.
sanitize() {
    local tool=$1 name=$2 start=$SECONDS text=$out/sanitizer-$1.txt code
    shift 2
    if [[ -n ${ONLY:-} && ! $name =~ $ONLY ]]; then return; fi
    echo "== $tool: ginlab $*" | tee -a "$text"
    timeout 150 "$sanitizer" --tool "$tool" --target-processes all --error-exitcode 99 "$ginlab" "$@" --no-header -t 100 \
        >"$text.now" 2>&1
    code=$?
    cat "$text.now" >>"$text"
    if [[ $code == 0 ]] && ! grep -E 'ERROR SUMMARY: [1-9]|RACECHECK SUMMARY: [1-9]' "$text.now"; then
        echo "   ok, $((SECONDS - start)) s" | tee -a "$text"
    else
        echo "   FAILED: $name under $tool: code $code after $((SECONDS - start)) s: $(grep -m 3 '=====' "$text.now" | tail -n 1)" |
            tee -a "$text"
        failures=$((failures + 1))
    fi
    rm -f "$text.now"
}

shmem=p-latency,put-latency,put-latency-loaded,get-latency,put-bandwidth,put-signal-bandwidth,get-bandwidth,signal-ping-pong,put-signal-ping-pong,message-ping-pong,barrier-all,all-to-all,signal-order,data-order
collectives=gin-all-to-all,gin-all-gather,gin-reduce-scatter,gin-all-reduce,gin-broadcast
paths=('rails -p tcp')
if ((gpus >= 2)); then paths+=(nvlink); fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for tool in $tools; do
    : >"$out/sanitizer-$tool.txt"
    sanitize "$tool" queue queue -d gpu --grid 2 --block 1,32,33,64,96,256 -n 4 -r 1 --ring-slots 64
    sanitize "$tool" queue-warp queue -d gpu --scope warp --grid 2 --block 32,33,96 -n 4 -r 1 --rings 2
    sanitize "$tool" lanes queue -d gpu -a lanes --grid 2 --block 32,33,96 -n 4 -r 1 --rings 1,3,32
    sanitize "$tool" put proxy -p null -d gpu --grid 2 --block 1,32,33,64,256,1024 -b 64 -e 64K -f 1024 -n 4 -w 1 -r 1 --window 2
    sanitize "$tool" put-thread proxy -p null -d gpu --scope thread --grid 2 --block 32,33,96 -b 64 -e 64 -n 4 -w 1 -r 1
    sanitize "$tool" put-batch proxy -p null -d gpu --mode nbi-batch=8 --grid 2 --block 1,33,256 -b 64 -e 64K -f 1024 -n 20 -w 1 -r 1
    sanitize "$tool" put-trace proxy -p null -d gpu --grid 2 --block 96 -b 64 -e 64 -n 20 -w 1 -r 1 --trace "$work/trace"
    for path in "${paths[@]}"; do
        # shellcheck disable=SC2086  # a path and its provider
        set -- -d gpu --np 2 --path $path -r 1 -w 1
        sanitize "$tool" shmem shmem "$@" --cases "$shmem" --scope thread,warp,block --grid 2 --block 96 -b 8 -e 4K -f 512 -n 4
        sanitize "$tool" collective collective "$@" --cases "$collectives" --launch stream,persistent --scope thread,warp,block --block 96 \
            -b 64 -e 64K -f 1024 --message-limit 1K -n 2
        # shellcheck disable=SC2086
        sanitize "$tool" jacobi jacobi -d gpu --np 2 --path $path -r 1 --exchange host-write,p,block,row,resident --nx 256 -n 4
    done
done
if [[ " $tools " == *" memcheck "* && $gpus -ge 2 ]]; then
    sanitize memcheck ipc ipc -d gpu -b 64K -e 64K --grid 2 --block 256 -o write,copy,read -r 1
fi
echo "sanitizer: $failures failed"
exit $((failures > 0))
