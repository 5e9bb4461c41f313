#!/usr/bin/env bash
# Compiles NVSHMEM's side of a comparison (experiments/shmem/baseline/nvshmem.cu), and prints the command for --nvshmem. Takes a minute.
#
#   scripts/nvshmem.sh PROGRAM LOG     PROGRAM: file to write; LOG: file for messages of its runs
#
#   NVSHMEM_HOME        directory with include/nvshmem.h   [default: a Python package, or the system's]
#   NVSHMEM_PERCENTAGE  share of a GPU that each PE may use (MPS), if both share one   [default: 100]
#   MPIRUN              [default: mpirun --allow-run-as-root --oversubscribe --bind-to none]
#
# Exit codes: 0 ok, 1 NVSHMEM or nvcc is missing, or it does not compile.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Prints the directory of NVSHMEM and that of its headers.
find_nvshmem() {
    local folder include
    for folder in "${NVSHMEM_HOME:-}" /usr/local/nvshmem /opt/nvshmem /opt/nvidia/nvshmem /usr \
        $(python3 -c 'import nvidia.nvshmem as n; print(list(n.__path__)[0])' 2>/dev/null); do
        for include in "$folder/include" "$folder/include/nvshmem" "$folder/include/nvshmem_13" "$folder/include/nvshmem_12"; do
            if [[ -n $folder && -f $include/nvshmem.h ]]; then echo "$folder $include" && return; fi
        done
    done
    return 1
}
found=$(find_nvshmem) || { echo 'nvshmem.sh: no NVSHMEM here' >&2; exit 1; }
read -r home include <<<"$found"
lib=$(dirname "$(find "$home/" -name libnvshmem_device.a 2>/dev/null | head -n 1)")
host=$(find "$home/" -name 'libnvshmem_host.so*' 2>/dev/null | head -n 1)
timeout 150 nvcc -O3 -std=c++17 -gencode arch=compute_90,code=sm_90 -rdc=true -I"$include" experiments/shmem/baseline/nvshmem.cu -L"$lib" \
    -Xlinker "$host" -lnvshmem_device -lcuda -lnvidia-ml -Xlinker -rpath="$(dirname "$host")" -o "$1" >&2
echo "LD_LIBRARY_PATH=$(dirname "$host"):\$LD_LIBRARY_PATH NVSHMEM_BOOTSTRAP=MPI NVSHMEM_DISABLE_NVLS=1 NVSHMEM_DISABLE_MNNVL=1 \
CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=${NVSHMEM_PERCENTAGE:-100} ${MPIRUN:-mpirun --allow-run-as-root --oversubscribe --bind-to none} -np 2 $1 2>$2"
