#!/usr/bin/env bash
# Measures NCCL EP's low-latency kernels and `ginlab moe` alternately over NVLink.
#
#   pip download --no-deps nvidia-nccl-cu13==2.32.3 nccl4py==0.3.1     (unzip each into its own directory)
#   NCCL_HOME=.../nvidia/nccl NCCL_EP_HOME=.../nccl/ep scripts/gpu-check-nccl-ep.sh [GINLAB]
#
#   NCCL_HOME     unpacked wheel nvidia-nccl-cu13, 2.30.7 or newer: include/nccl.h, lib/libnccl.so.2
#   NCCL_EP_HOME  directory ep of the unpacked wheel nccl4py 0.3.1
#   NCCL_EP       compiled experiments/moe/nccl_ep.cu   [default: compiled with nvcc]
#   OUT           directory for CSV                     [default: new, under /tmp]
#   TURNS         repetitions                           [default: 3]
#   RANKS         number of ranks                       [default: 2]
#
# Needs two GPUs. Takes about a minute; each step has a time limit. Exit codes: 0 ok, 1 a step failed, 2 too few GPUs.
set -u
cd "$(dirname "$0")/.." || exit
ginlab=${1:-target/release/ginlab}
OUT=${OUT:-$(mktemp -d /tmp/ginlab-nccl-ep.XXXXXX)}
mkdir -p "$OUT"
ranks=${RANKS:-2} turns=${TURNS:-3} ep=${NCCL_EP:-$OUT/nccl_ep}
nccl=${NCCL_HOME:?the folder of nvidia-nccl-cu13: include/nccl.h, lib/libnccl.so.2} home=${NCCL_EP_HOME:?the folder ep of nccl4py}
# NVLink multicast stays off.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU') || true
if [ "${gpus:-0}" -lt "$ranks" ]; then
    echo "gpu-check-nccl-ep: needs $ranks GPUs, found ${gpus:-0}" >&2
    exit 2
fi
mkdir -p "$OUT/lib"
ln -sf "$home/lib/libnccl_ep.so" "$OUT/lib/libnccl_ep.so.0"
ln -sf "$home/lib/libnccl_ep.so" "$OUT/lib/libnccl_ep.so"
export LD_LIBRARY_PATH=$OUT/lib:$nccl/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if [ ! -x "$ep" ]; then
    timeout 120 nvcc -O2 -std=c++17 -arch=native -I"$home/include" -I"$nccl/include" -o "$ep" experiments/moe/nccl_ep.cu \
        -L"$OUT/lib" -lnccl_ep -L"$nccl/lib" -l:libnccl.so.2 -lcuda || exit 1
fi
status=0
for turn in $(seq "$turns"); do
    timeout -k 5 100 "$ep" "$ranks" 128 7168 8 256 60 >"$OUT/nccl-ep-$turn.csv" 2>"$OUT/nccl-ep-$turn.txt" || status=1
    timeout -k 5 60 "$ginlab" moe --np "$ranks" --path nvlink --type bf16 --unit expert,rank --count signal,word,immediate --scope warp,block \
        -n 60 -w 5 -r 1 --csv "$OUT/ginlab-$turn.csv" >"$OUT/ginlab-$turn.txt" 2>&1 || status=1
done
grep -h ^layout "$OUT/nccl-ep-1.csv"
grep -hv ^layout "$OUT"/nccl-ep-*.csv
cat "$OUT"/nccl-ep-*.txt >&2
awk -F, 'FNR == 1 { for (at = 1; at <= NF; at++) column[$at] = at; next }
    !/^#/ { print $column["unit"] "," $column["count"] "," $column["grid"] "x" $column["block"] "," $column["dispatch_us"] "," $column["combine_us"] "," $column["wrong"] }' "$OUT"/ginlab-*.csv
echo "gpu-check-nccl-ep: results: $OUT" >&2
exit $status
