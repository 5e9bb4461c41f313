#!/usr/bin/env bash
# Builds and runs NVIDIA's Jacobi programs, as a reference for `ginlab jacobi`.
#
#   git clone https://github.com/NVIDIA/multi-gpu-programming-models     (measured with commit 9a600f5)
#   scripts/jacobi-nvidia.sh CHECKOUT
#
#   OUT           directory for nvidia.csv and logs   [default: new, under /tmp]
#   RANKS         number of GPUs                      [default: all]
#   SIZES         sides of the field                  [default: 1024,4096,16384]
#   PROGRAMS      [default: nccl,nccl_overlap,nccl_graphs,multi_threaded_p2p_opt,nvshmem]
#   NITER         iterations                          [default: 1000]
#   MPIRUN        [default: mpirun --allow-run-as-root --oversubscribe --bind-to none]
#   NCCL_HOME, NVSHMEM_HOME   directories with include/   [default: a Python package, or the system's]
#
# Prints the command for `ginlab jacobi --nvshmem`, which measures NVSHMEM's program in ginlab's run.
# The programs are built with block reduction (HAVE_CUB). Columns of nvidia.csv, as printed with -csv: type, nx, ny,
# iterations, iterations between norms, GPUs, 1, seconds on all GPUs, seconds on one. Each step has a time limit. Exit
# codes: 0 ok, 1 a tool is missing, 2 usage.
set -u
if [[ $# -ne 1 || ! -f $1/nccl/jacobi.cpp ]]; then
    echo 'usage: scripts/jacobi-nvidia.sh CHECKOUT, a checkout of NVIDIA/multi-gpu-programming-models' >&2
    exit 2
fi
source=$(realpath "$1")
OUT=${OUT:-$(mktemp -d /tmp/ginlab-jacobi-nvidia.XXXXXX)}
mkdir -p "$OUT/build"
ranks=${RANKS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')}
sizes=${SIZES:-1024,4096,16384} niter=${NITER:-1000}
programs=${PROGRAMS:-nccl,nccl_overlap,nccl_graphs,multi_threaded_p2p_opt,nvshmem}
mpi=${MPIRUN:-mpirun --allow-run-as-root --oversubscribe --bind-to none}
note() { echo "jacobi-nvidia: $*" >&2; }
for tool in nvcc mpicxx; do command -v "$tool" >/dev/null || { note "no $tool found"; exit 1; }; done
cuda=$(dirname "$(dirname "$(realpath "$(command -v nvcc)")")")

# Prints a directory with this header under include/: from the environment, a Python package, or the system.
find_home() {
    local name=$1 header=$2 folder include
    shift 2
    for folder in "$@" $(python3 -c "import nvidia.$name as n; print(list(n.__path__)[0])" 2>/dev/null) /usr/local /usr; do
        for include in "$folder"/include "$folder"/include/nvshmem*; do
            [ -f "$include/$header" ] && { echo "$folder $include"; return; }
        done
    done
}
read -r nccl nccl_include < <(find_home nccl nccl.h "${NCCL_HOME:-/nonexistent}") || true
read -r nvshmem nvshmem_include < <(find_home nvshmem nvshmem.h "${NVSHMEM_HOME:-/nonexistent}" /usr/local/nvshmem /opt/nvshmem /opt/nvidia/nvshmem) || true
library() { find "$1"/ -name "$2" 2>/dev/null | head -1; }

build() {
    local name=$1 at=$source/$1 to=$OUT/build/$1 lib host
    case $name in
    nccl*)
        lib=$(library "${nccl:-/nonexistent}" 'libnccl.so*')
        [ -n "$lib" ] || { echo "no header or library of NCCL found"; return 1; }
        nvcc -DHAVE_CUB -O3 -arch=sm_90 -std=c++17 -c "$at/jacobi_kernels.cu" -o "$to.o" &&
            mpicxx -O2 -std=c++17 -I"$cuda/include" -I"$nccl_include" "$at/jacobi.cpp" "$to.o" -L"$cuda/lib64" -lcudart -ldl "$lib" \
                -Wl,-rpath="$(dirname "$lib")" -Wl,-rpath="$cuda/lib64" -o "$to"
        ;;
    nvshmem)
        lib=$(dirname "$(library "${nvshmem:-/nonexistent}" libnvshmem_device.a)")
        host=$(library "${nvshmem:-/nonexistent}" 'libnvshmem_host.so*')
        [ -n "$host" ] || { echo "no library of NVSHMEM found"; return 1; }
        nvcc -ccbin mpicxx -DHAVE_CUB -O3 -arch=sm_90 -std=c++17 -rdc=true -Xcompiler -fopenmp -I"$nvshmem_include" "$at/jacobi.cu" -L"$lib" \
            -Xlinker "$host" -lnvshmem_device -lcuda -lcudart -ldl -lnvidia-ml -Xlinker -rpath="$(dirname "$host")" -o "$to"
        ;;
    *) nvcc -DHAVE_CUB -O3 -arch=sm_90 -std=c++17 -Xcompiler -fopenmp "$at/jacobi.cu" -ldl -o "$to" ;;
    esac
}

# run NAME ARGUMENTS...: runs a program once; appends its line of figures to the table.
run() {
    local name=$1 launch=()
    shift
    [ "$name" = multi_threaded_p2p_opt ] || read -ra launch <<<"$mpi -np $ranks"
    export NVSHMEM_BOOTSTRAP=MPI NVSHMEM_DISABLE_NVLS=1 NVSHMEM_DISABLE_MNNVL=1 NCCL_NVLS_ENABLE=0
    CUDA_VISIBLE_DEVICES=$(seq -s, 0 $((ranks - 1))) timeout -k 2 30 "${launch[@]}" "$OUT/build/$name" -csv -niter "$niter" "$@" >"$OUT/last.txt" 2>&1
    local ended=$?
    grep -E '^[a-z_0-9-]+, *[0-9]+,' "$OUT/last.txt" | tail -1 | tee -a "$OUT/nvidia.csv"
    { echo "== $name $*: $ended"; cat "$OUT/last.txt"; } >>"$OUT/nvidia.txt"
    [ $ended -eq 0 ] || note "$name $* ended with $ended: $(tail -1 "$OUT/last.txt")"
}

note "compiling $programs"
for name in ${programs//,/ }; do build "$name" >"$OUT/build/$name.txt" 2>&1 & done
wait
for name in ${programs//,/ }; do
    [ -x "$OUT/build/$name" ] || { note "$name was not compiled: $(tail -1 "$OUT/build/$name.txt")"; continue; }
    for size in ${sizes//,/ }; do
        run "$name" -nx "$size" -ny "$size"
        if [ "$name" = nvshmem ]; then run "$name" -nx "$size" -ny "$size" -norm_overlap -neighborhood_sync; fi
    done
done
if [ -x "$OUT/build/nvshmem" ]; then
    note "ginlab jacobi --nvshmem 'NVSHMEM_BOOTSTRAP=MPI NVSHMEM_DISABLE_NVLS=1 NVSHMEM_DISABLE_MNNVL=1 $mpi -np $ranks $OUT/build/nvshmem'"
fi
note "results: $OUT"
