#!/usr/bin/env bash
# Checks and measures on one GPU: device API calls compared with NVSHMEM, every collective with 4 and 8 PEs, and every
# program over every rail with and without MPS.
#
#   scripts/gpu-check-one-gpu.sh [GINLAB]
#
#   OUT           directory for CSV files, matrix.csv and steps.csv   [default: new, under /tmp]
#   LIMIT         seconds for all steps               [default: 600]
#   STEPS         list of: calls, random, spread, collectives, nccl, matrix, turns   [default: all]
#   GPUS          2: one GPU per PE for the calls     [default: 1]
#   TURNS         iterations per launch               [default: 1000]
#   SEEDS         seeds of random shapes              [default: 1 2 3]
#   SHAPES        random shapes for each seed         [default: 70]
#   NVSHMEM_HOME  see gpu-check-nvshmem.sh
#   MPIRUN        the mpirun for NVSHMEM
#
# Each step has a time limit; steps beyond LIMIT are reported as not run. Without a GPU it uses the emulated device with
# small sizes, which only tests the script. Exit codes: 0 ok, 1 a step failed.
set -u
cd "$(dirname "$0")/.." || exit
ginlab=$(realpath "${1:-target/release/ginlab}")
OUT=${OUT:-$(mktemp -d /tmp/ginlab-one-gpu.XXXXXX)}
LIMIT=${LIMIT:-600}
mkdir -p "$OUT"
OUT=$(realpath "$OUT")
status=0
if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
    device=gpu
    CUDA_VISIBLE_DEVICES=$(echo "${CUDA_VISIBLE_DEVICES:-0,1}" | cut -d, -f"1-${GPUS:-1}")
    export CUDA_VISIBLE_DEVICES
    turns=${TURNS:-1000} largest=64M blocks=32,256,1024 nps='2 4 8' field=256
else
    device=emulated
    turns=${TURNS:-5} largest=4K blocks=32 nps=2 field=64
fi
# Token of ranks that connect by an address.
export GINLAB_TOKEN=${GINLAB_TOKEN:-one-gpu}
# Our servers are found by this directory. The path is short enough for a socket.
TMPDIR=$(mktemp -d /tmp/go.XXXXXX)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
note() { echo "gpu-check-one-gpu: $*" >&2; }
wanted() { [ -z "${STEPS:-}" ] || [[ " ${STEPS//,/ } " == *" $1 "* ]]; }
echo 'step,code,seconds,text' >"$OUT/steps.csv"

# run SECONDS NAME SUBCOMMAND ARGUMENTS...: writes rows to NAME.csv; also limited by the remaining time.
run() {
    local limit=$1 name=$2 start=$SECONDS left=$((LIMIT - SECONDS - 5)) code
    shift 2
    if [ $left -lt 5 ]; then
        echo "$name,not-run,0,no time is left" >>"$OUT/steps.csv"
        return 1
    fi
    [ $left -ge "$limit" ] || limit=$left
    timeout -k 5 "$limit" "$ginlab" "$@" -d $device --csv "$OUT/$name.csv" >"$OUT/$name.txt" 2>&1
    code=$?
    echo "$name,$code,$((SECONDS - start)),$(tail -1 "$OUT/$name.txt" | tr ',"' ';_' | cut -c1-120)" >>"$OUT/steps.csv"
    [ $code -eq 0 ] || { status=1; note "$name ended with $code: $(tail -1 "$OUT/$name.txt")"; }
    return $code
}

# shellcheck source=scripts/gpu-check-nvshmem.sh
source scripts/gpu-check-nvshmem.sh
nvshmem=()
if { wanted calls || wanted random || wanted spread; } && [ $device = gpu ]; then
    # At the same time as the next step: the driver compiles the kernels, which it does once per machine.
    compile_nvshmem "$TMPDIR/nvshmem" "$OUT/nvcc.txt" &
fi
if wanted calls || wanted random || wanted spread; then
    run 60 compile shmem --np 2 --mps off -t 20 -n 1 -w 0 -r 1 -b 8 -e 8 --block 32 --cases put-latency,message-ping-pong
fi
wait
if wanted calls || wanted random || wanted spread; then
    export NVSHMEM_PERCENTAGE=$((100 * ${GPUS:-1} / 2))
    if [ -x "$TMPDIR/nvshmem" ]; then nvshmem=(--nvshmem "$(nvshmem_command "$TMPDIR/nvshmem" "$OUT/nvshmem.txt")"); else note "no NVSHMEM: $(tail -1 "$OUT/nvcc.txt" 2>/dev/null)"; fi
fi
if wanted calls; then
    calls=(shmem --np 2 --path nvlink -t 10 -n "$turns" -w $((turns / 10)) -r 5)
    most=2M
    [ $device = gpu ] || most=4K
    # Without NVSHMEM if it does not run here.
    if [ ${#nvshmem[@]} -gt 0 ] && ! run 40 try "${calls[@]}" --cases signal-ping-pong "${nvshmem[@]}"; then
        note "NVSHMEM does not run here: $(tail -1 "$OUT/nvshmem.txt" 2>/dev/null)"
        nvshmem=() status=0
    fi
    run 60 calls-block "${calls[@]}" --scope block --block $blocks -b 8 -e $most -f 8 --volume 256M --cases put-latency,get-latency "${nvshmem[@]}"
    run 60 calls-few "${calls[@]}" --scope thread,warp -b 8 -e $most -f 8 --volume 4M --cases put-latency,get-latency "${nvshmem[@]}"
    run 60 calls-signals-block "${calls[@]}" --scope block --block $blocks -b 8 -e $most -f 8 --volume 256M --cases put-signal-ping-pong,put-signal-set-ping-pong "${nvshmem[@]}"
    run 60 calls-signals-few "${calls[@]}" --scope thread,warp -b 8 -e $most -f 8 --volume 4M --cases put-signal-ping-pong,put-signal-set-ping-pong "${nvshmem[@]}"
    run 60 calls-messages "${calls[@]}" --scope thread,warp,block --block $blocks -b 8 -e 32K -f 8 --volume 4M --cases message-ping-pong "${nvshmem[@]}"
    run 60 calls-one "${calls[@]}" --scope thread,warp,block --block $blocks -b 8 -e 4K -f 512 --cases p-latency,signal-ping-pong,signal-set-ping-pong,atomic-latency,barrier-all,all-to-all "${nvshmem[@]}"
    [ $device = emulated ] || run 60 calls-8m "${calls[@]}" --scope thread,warp,block --block $blocks -b 8M -e 8M --volume 64M --cases put-latency,get-latency,put-signal-ping-pong,put-signal-set-ping-pong "${nvshmem[@]}"
fi
if wanted random; then
    shapes=(-n 300 -w 30 -r 3)
    [ $device = gpu ] || shapes=(-n 3 -w 1 -r 1 -e 4K)
    for seed in ${SEEDS:-1 2 3}; do
        run 100 "random-$seed" shmem --np 2 --path nvlink -t 10 --random "${SHAPES:-70}" --seed "$seed" "${shapes[@]}" "${nvshmem[@]}"
    done
fi
if wanted spread; then
    # Repeated with new processes, also of NVSHMEM, because the driver chooses the placement of blocks and memory.
    for round in 1 2 3 4 5 6 7 8; do
        run 20 "spread-$round" shmem --np 2 --path nvlink -t 10 -n "$turns" -w $((turns / 10)) -r 3 --scope block --block 256,1024 -b 8 -e 32K -f 8 \
            --cases get-latency,signal-ping-pong,signal-set-ping-pong,atomic-latency,put-signal-ping-pong,put-signal-set-ping-pong,message-ping-pong,barrier-all,all-to-all "${nvshmem[@]}"
    done
fi
if wanted collectives; then
    for np in 4 8; do
        run 120 "collective-$np" collective --np $np -t 20 -b 16 -e $largest -f 4 -n 5 -r 2 --block 256 \
            --cases gin-all-to-all,gin-all-gather,gin-reduce-scatter,gin-all-reduce,gin-broadcast
    done
fi
if wanted nccl && [ $device = gpu ]; then
    # NCCL accepts ranks of one GPU only if each claims to be its own node; they use sockets then.
    pipe=$TMPDIR/nccl/pipe
    mkdir -p "$pipe" "$TMPDIR/nccl/log"
    export CUDA_MPS_PIPE_DIRECTORY=$pipe CUDA_MPS_LOG_DIRECTORY=$TMPDIR/nccl/log
    timeout 10 nvidia-cuda-mps-control -d >"$OUT/nccl-mps.txt" 2>&1
    start=$SECONDS
    for rank in 0 1; do
        RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=${MASTER_PORT:-29517} NCCL_HOSTID=ginlab-$rank NCCL_SOCKET_IFNAME=lo NCCL_NVLS_ENABLE=0 \
            timeout -k 5 60 "$ginlab" collective --bootstrap tcp -d gpu -t 20 -b 8 -e 16M -f 8 -n 5 -r 3 --launch graph \
            --cases gin-all-reduce,nccl-all-reduce,gin-all-to-all,nccl-all-to-all --csv "$OUT/nccl.csv" >"$OUT/nccl-$rank.txt" 2>&1 &
        eval "nccl$rank=$!"
    done
    # shellcheck disable=SC2154  # set by eval
    wait "$nccl0"
    code=$?
    # shellcheck disable=SC2154
    wait "$nccl1"
    echo "nccl,$code,$((SECONDS - start)),$(tail -1 "$OUT/nccl-0.txt" | tr ',"' ';_' | cut -c1-120)" >>"$OUT/steps.csv"
    echo quit | timeout 10 nvidia-cuda-mps-control >>"$OUT/nccl-mps.txt" 2>&1
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
fi

# one PROGRAM NP RAIL MPS: runs one program with verification; appends a line to matrix.csv.
one() {
    local program=$1 np=$2 rail=$3 mps=$4 start=$SECONDS code arguments n=50 name
    [ "$mps" = auto ] || n=3
    [ $device = gpu ] || n=3
    case $program in
    proxy) arguments="-p $rail -b 64 -e 64K -f 32 -n $n -w 5 -r 2 --rails 1 --block 32 --grid 1" ;;
    shmem) arguments="--path rails -p $rail -b 8 -e 4K -f 512 -n $n -w 1 -r 1 --block 64 --cases put-latency,get-latency,signal-ping-pong,put-signal-ping-pong,message-ping-pong,barrier-all,all-to-all" ;;
    collective) arguments="--path rails -p $rail -b 1K -e 64K -f 64 -n 3 -r 1 --block 64 --cases gin-all-to-all,gin-all-reduce" ;;
    jacobi) arguments="--path rails -p $rail --nx $field --ny $field --exchange row,resident -n $n -r 1" ;;
    esac
    if [ $((LIMIT - SECONDS)) -lt 15 ]; then
        echo "$program,$np,$rail,$mps,not-run,0,,,," >>"$OUT/matrix.csv"
        return
    fi
    name=$TMPDIR/row.csv
    rm -f "$name"
    # shellcheck disable=SC2086  # the arguments are words
    timeout -k 5 30 "$ginlab" "$program" --np "$np" --mps "$mps" -t 10 -d $device $arguments --csv "$name" >"$TMPDIR/row.txt" 2>&1
    code=$?
    [ $code -eq 0 ] || { status=1; note "$program --np $np -p $rail --mps $mps ended with $code: $(tail -1 "$TMPDIR/row.txt")"; }
    # Rows, total of wrong bytes, how PEs share the GPU, and the first row's time.
    awk -F, -v head="$program,$np,$rail,$mps,$code,$((SECONDS - start))" '
        NR == 1 { for (i = 1; i <= NF; i++) n[$i] = i; next }
        { rows++; wrong += $n["wrong"]; shared = $n["sharing"]; if (rows == 1) time = $n["time_us_p50"] }
        END { printf "%s,%d,%d,%s,%s\n", head, rows, wrong, shared, time }' "$name" >>"$OUT/matrix.csv" 2>/dev/null ||
        echo "$program,$np,$rail,$mps,$code,$((SECONDS - start)),0,,," >>"$OUT/matrix.csv"
}
[ -e "$OUT/matrix.csv" ] || echo 'program,np,rail,mps,code,seconds,rows,wrong,sharing,first_time_us_p50' >"$OUT/matrix.csv"
for mps in auto off; do
    if [ $mps = auto ]; then wanted matrix || continue; else wanted turns || continue; fi
    for np in $nps; do
        for rail in null tcp model:p5 soft-efa worst:seed=1; do
            for program in proxy shmem collective jacobi; do
                # The null rail moves no bytes, so a PE that waits for another one would wait forever.
                [ $rail != null ] || [ $program = proxy ] || continue
                one $program "$np" $rail $mps
            done
        done
    done
done
note "results: $OUT ($SECONDS s), $(grep -c ',0,[0-9]*,[1-9][0-9]*,0,' "$OUT/matrix.csv") rows of the matrix verified"
exit $status
