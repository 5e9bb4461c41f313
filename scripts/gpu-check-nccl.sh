#!/usr/bin/env bash
# Checks and measures NCCL's GIN over ginlab's rails on one GPU, alternating with ginlab's device API over the same
# rails.
#
#   scripts/gpu-check-nccl.sh [GINLAB]
#
#   OUT           directory for NAME.csv (rows) and NAME.txt (messages, tables)   [default: new, under /tmp]
#   NCCL_HOME     directory with include/ and lib/   [default: python3's wheel nvidia-nccl-cu13]
#   NCCL_EP_HOME  directory ep of the wheel nccl4py 0.3.1; also times NCCL EP, whose kernels need almost a whole GPU
#   GIN           compiled gin.cu                    [default: compiled with nvcc]
#   SEEDS         seeds of `worst`                   [default: 20]
#   STEPS         list of steps                      [default: all]
#   LEFT          time limit in seconds; steps that do not fit are reported as not run
#
# Each step has a time limit; all take about four minutes. Without a GPU or NCCL nothing is run. Exit codes: 0 ok, 1 a
# step failed.
set -u
cd "$(dirname "$0")/.." || exit
ginlab=${1:-target/release/ginlab}
OUT=${OUT:-$(mktemp -d /tmp/ginlab-nccl.XXXXXX)}
mkdir -p "$OUT"
status=0
note() { echo "gpu-check-nccl: $*" >&2; }
wanted() { [ -z "${STEPS:-}" ] || [[ " ${STEPS//,/ } " == *" $1 "* ]]; }
if ! nvidia-smi -L >"$OUT/machine.txt" 2>&1; then note "not run: no GPU"; exit 0; fi
nvidia-smi --query-gpu=driver_version --format=csv,noheader >>"$OUT/machine.txt"

home=${NCCL_HOME:-$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])' 2>/dev/null)}
if [ ! -f "$home/lib/libnccl.so.2" ]; then note "not run: no NCCL (pip install nvidia-nccl-cu13==2.32.3, or NCCL_HOME)"; exit 0; fi
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
gin=${GIN:-$OUT/gin}
if [ ! -x "$gin" ]; then
    if ! timeout 150 "$nvcc" -std=c++17 -O2 -arch=native -cudart static -I "$home/include" -L "$home/lib" -o "$gin" experiments/nccl/gin.cu \
        -l:libnccl.so.2 >"$OUT/nvcc.txt" 2>&1; then
        note "gin.cu was not compiled: $OUT/nvcc.txt"
        exit 1
    fi
fi

fits() {
    [ -z "${LEFT:-}" ] || [ $((LEFT - SECONDS)) -gt "$1" ] || { note "$2: not run, $((LEFT - SECONDS)) s are left"; return 1; }
}
# Writes the header that data/ keeps with a table.
header() {
    local name=$1
    shift
    printf '{\n  "command": "%s",\n  "gpu": "%s",\n  "driver": "%s",\n  "nccl": "%s",\n  "versions": "%s"\n}\n' "$*" \
        "$(sed -n '1s/^GPU 0: \(.*\) (UUID.*/\1/p' "$OUT/machine.txt")" "$(tail -n 1 "$OUT/machine.txt")" \
        "$(grep -ao 'NCCL [0-9]*, ' "$OUT/$name.txt" | head -n 1 | tr -d ', ')" "$("$ginlab" --version | head -n 1)" >"$OUT/$name.header.json"
}
# nccl LIMIT NAME OPTIONS...: runs gin.cu under `ginlab nccl` with these options, if selected.
nccl() {
    local limit=$1 name=$2 start=$SECONDS ended
    shift 2
    wanted "${name%%.*}" && fits "$limit" "$name" || return 0
    timeout -k 5 "$limit" "$ginlab" nccl --nccl "$home/lib" "$@" -- "$gin" >"$OUT/$name.csv" 2>"$OUT/$name.txt"
    ended=$?
    header "$name" "ginlab nccl $* -- ./gin"
    note "$name: $((SECONDS - start)) s, $(grep -c ',ok$' "$OUT/$name.csv") cases right"
    [ $ended -eq 0 ] || { note "$name ended with $ended: $(grep -a -m 1 -E 'ginlab|rank' "$OUT/$name.txt")"; status=1; }
}
# own LIMIT NAME OPTIONS...: runs `ginlab shmem` with these options, if selected.
own() {
    local limit=$1 name=$2 start=$SECONDS ended
    shift 2
    wanted "${name%%.*}" && fits "$limit" "$name" || return 0
    timeout -k 5 "$limit" "$ginlab" shmem -d gpu --path rails --csv "$OUT/$name.csv" "$@" >"$OUT/$name.txt" 2>&1
    ended=$?
    note "$name: $((SECONDS - start)) s"
    [ $ended -eq 0 ] || { note "$name ended with $ended: $(tail -1 "$OUT/$name.txt")"; status=1; }
}

# shellcheck disable=SC2054  # a list for ginlab
mine=(--cases put-signal-ping-pong,put-signal-bandwidth,all-to-all --grid 1 -b 8 -e 4M -f 8 -n 100 -r 3)
# The same rails, alternating: NCCL's path and ours, twice.
for turn in 1 2; do
    nccl 40 "pair.$turn" --np 2
    own 40 "own.$turn" --np 2 -p shared "${mine[@]}"
    own 40 "own.4M.$turn" --np 2 -p shared --cases put-signal-ping-pong,put-signal-bandwidth --grid 1 -b 4M -e 4M -n 50 -r 3
done
# NCCL's kernels drive the NIC's queues.
for turn in 1 2; do nccl 40 "queues.$turn" --np 2 --type queues; done
# Only the copy engines, alternating with the copy kernel.
for turn in 1 2 3; do
    for kind in proxy queues; do
        for copies in engine kernel; do GINLAB_NCCL_COPIES=$copies nccl 40 "copies.$copies.$kind.$turn" --np 2 --type "$kind"; done
    done
done
for copies in engine kernel; do
    for kind in proxy queues; do
        GINLAB_NCCL_COPIES=$copies GIN_ITERATIONS=40 nccl 50 "copies.$copies.$kind.8" --np 8 --type "$kind"
    done
done
# NCCL EP with type 2: two ranks with few experts, so that the blocks of both fit on one GPU.
ep() {
    local limit=60 name=$1 start=$SECONDS right
    shift
    fits "$limit" "$name" || return 0
    LD_LIBRARY_PATH=$OUT/ep:$home/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} NCCL_HOME=$home timeout -k 5 "$limit" "$ginlab" nccl --nccl "$home/lib" \
        --hostnames "$@" -- "$OUT/nccl_ep" 2 50 7168 8 32 20 2>"$OUT/$name.txt" | head -c 4000 >"$OUT/$name.csv"
    header "$name" "ginlab nccl --hostnames $* -- ./nccl_ep 2 50 7168 8 32 20"
    right=$(grep -c '^[a-z]*,2,50,.*,0$' "$OUT/$name.csv")
    note "$name: $((SECONDS - start)) s, $right of 2 layouts right: $(awk -F, 'NR > 1 { printf "%s %s %s us ", $1, $9, $10 }' "$OUT/$name.csv" | head -c 200)"
    [ "$right" = 2 ] || status=1
}
if wanted ep; then
    if [ -z "${NCCL_EP_HOME:-}" ]; then
        note "ep: not run: no NCCL_EP_HOME"
    else
        mkdir -p "$OUT/ep"
        for link in libnccl_ep.so libnccl_ep.so.0; do ln -sf "$(realpath "$NCCL_EP_HOME")/lib/libnccl_ep.so" "$OUT/ep/$link"; done
        if timeout 120 "$nvcc" -O2 -std=c++17 -arch=native -I"$NCCL_EP_HOME/include" -I"$home/include" -o "$OUT/nccl_ep" experiments/moe/nccl_ep.cu \
            -L"$OUT/ep" -lnccl_ep -L"$home/lib" -l:libnccl.so.2 -lcuda >"$OUT/nvcc-ep.txt" 2>&1; then
            for turn in 1 2; do
                for copies in engine kernel; do GINLAB_NCCL_COPIES=$copies ep "ep.$copies.$turn"; done
            done
            ep ep.model -p model:p5 --rails 4
            ep ep.worst -p worst:seed=7 --rails 2
        else
            note "nccl_ep.cu was not compiled: $OUT/nvcc-ep.txt"
            status=1
        fi
    fi
fi
nccl 40 queues.model --np 2 --type queues -p model:p5 --rails 4 --strategy split
nccl 40 queues.tcp --np 2 --type queues -p tcp
nccl 50 queues.soft --np 2 --type queues -p soft-efa:p5 --rails 4
for count in 4 8; do GIN_ITERATIONS=40 nccl 50 "queues.ranks.$count" --np "$count" --type queues; done
# A trace, and its replay over modelled cards in virtual time.
if wanted replay; then
    for count in 2 8; do
        GIN_ITERATIONS=20 GIN_CASES=all nccl 40 "replay.$count" --np "$count" --trace "$OUT/puts.$count.jsonl"
        "$ginlab" replay "$OUT/puts.$count.jsonl" -p model:p5,model:p5en --rails 1,4 --csv "$OUT/replayed.$count.csv" >"$OUT/replayed.$count.txt" 2>&1
    done
fi
nccl 40 model --np 2 -p model:p5 --rails 4 --strategy split
own 40 ownmodel --np 2 -p model:p5 --rails 4 --strategy split "${mine[@]}"
nccl 40 tcp --np 2 -p tcp
nccl 50 soft --np 2 -p soft-efa:p5 --rails 4
# More ranks.
for count in 4 8; do GIN_ITERATIONS=40 nccl 50 "ranks.$count" --np "$count"; done
GIN_ITERATIONS=20 nccl 50 ranks.8model --np 8 -p model:p5 --rails 4
# Ranks started by mpirun.
if command -v mpirun >/dev/null; then
    if wanted mpirun && fits 40 mpirun; then
        # shellcheck disable=SC2016  # expanded by each rank
        timeout -k 5 40 "$ginlab" nccl --nccl "$home/lib" -- mpirun --allow-run-as-root --oversubscribe -np 2 sh -c \
            'RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=2 LOCAL_RANK=0 MASTER_PORT=29711 GIN_ITERATIONS=20 exec "$0"' "$gin" >"$OUT/mpirun.csv" 2>"$OUT/mpirun.txt"
        note "mpirun: $?, $(grep -c ',ok$' "$OUT/mpirun.csv") cases right"
    fi
fi
# The variables that torchrun's workers receive, for any NCCL they load.
if wanted torchrun && fits 40 torchrun && command -v torchrun >/dev/null; then
    # shellcheck disable=SC2016  # expanded by each worker
    timeout -k 5 40 "$ginlab" nccl -- torchrun --standalone --no-python --nproc-per-node 2 sh -c \
        'echo "rank $RANK: $NCCL_HOSTID, GIN type $NCCL_GIN_TYPE, $NCCL_RMA_PLUGIN"' >"$OUT/torchrun.txt" 2>&1
    note "torchrun: $?, $(grep -c 'ginlab-process-.*GIN type 2' "$OUT/torchrun.txt") workers have the variables"
fi
# Injected faults.
for kind in proxy queues; do
    for fault in lost:30 error:30 dead:30 slow:200; do
        GIN_DEADLINE_S=4 GIN_CASES=put GIN_ITERATIONS=20 nccl 40 "fault.$kind.${fault%%:*}" --np 2 --type "$kind" --timeout 5 --fault "$fault" && true
    done
done
status=0
# Every case over `worst`.
for ((seed = 1; seed <= ${SEEDS:-20}; seed++)); do
    rule=$(printf 'count own drain sequence' | cut -d' ' -f$((seed % 4 + 1)))
    for kind in proxy queues; do
        GIN_ITERATIONS=10 nccl 40 "worst.$kind.$seed" --np $((seed % 5 ? 2 : 4)) --type "$kind" -p "worst:seed=$seed" --rails $((seed % 3 + 1)) --strategy split \
            --rule "$rule"
    done
done
note "results: $OUT"
exit $status
