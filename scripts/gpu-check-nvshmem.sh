# shellcheck shell=bash
# Builds NVSHMEM's side of a comparison (experiments/shmem/baseline/nvshmem.cu). Sourced from the repository's root by
# the checks that need it.
#
#   NVSHMEM_HOME  directory with include/nvshmem.h [default: a Python package, or the system's]

# Prints the directory of NVSHMEM and that of its headers.
find_nvshmem() {
    local folder include
    for folder in "${NVSHMEM_HOME:-}" /usr/local/nvshmem /opt/nvshmem /opt/nvidia/nvshmem /usr \
        $(python3 -c 'import nvidia.nvshmem as n; print(list(n.__path__)[0])' 2>/dev/null); do
        for include in "$folder/include" "$folder/include/nvshmem" "$folder/include/nvshmem_13" "$folder/include/nvshmem_12"; do
            [ -n "$folder" ] && [ -f "$include/nvshmem.h" ] && { echo "$folder $include"; return; }
        done
    done
    return 1
}

# compile_nvshmem BINARY LOG [FLAGS]: prints nothing; fails if NVSHMEM or nvcc is missing or compiling fails. Takes a
# minute.
compile_nvshmem() {
    local binary=$1 log=$2 home include lib host nvcc
    shift 2
    read -r home include < <(find_nvshmem) || { echo 'no NVSHMEM found' >"$log"; return 1; }
    nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null) || { echo 'no nvcc found' >"$log"; return 1; }
    lib=$(dirname "$(find "$home/" -name 'libnvshmem_device.a' 2>/dev/null | head -1)")
    host=$(find "$lib" "$home/" -name 'libnvshmem_host.so*' 2>/dev/null | head -1)
    timeout 150 "$nvcc" -O3 -std=c++17 -gencode arch=compute_90,code=sm_90 -rdc=true "$@" -I"$include" \
        experiments/shmem/baseline/nvshmem.cu -L"$lib" -Xlinker "$host" -lnvshmem_device -lcuda -lnvidia-ml \
        -Xlinker -rpath="$(dirname "$host")" -o "$binary" 2>"$log"
}

# nvshmem_command BINARY LOG: prints the command for --nvshmem. If both PEs share a GPU, each may use half of it (MPS).
nvshmem_command() {
    local home include host mpi=${MPIRUN:-mpirun --allow-run-as-root --oversubscribe --bind-to none}
    read -r home include < <(find_nvshmem)
    host=$(find "$home/" -name 'libnvshmem_host.so*' 2>/dev/null | head -1)
    echo "LD_LIBRARY_PATH=$(dirname "$host"):\$LD_LIBRARY_PATH NVSHMEM_BOOTSTRAP=MPI NVSHMEM_DISABLE_NVLS=1 NVSHMEM_DISABLE_MNNVL=1 \
CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=${NVSHMEM_PERCENTAGE:-100} $mpi -np 2 $1 2>$2"
}
