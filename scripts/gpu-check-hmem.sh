#!/usr/bin/env bash
# Checks that claims of GPU memory support by a provider are tested, on a machine with a GPU and without EFA:
# libfabric's EFA provider runs over a software NIC, which cannot access a GPU, and tests/hmem_double.c claims GPU
# memory like a libfabric with CUDA. doctor must detect each false claim, rows of `proxy --memory device` must report
# staging, and `proxy` without the option must use pinned host memory and name the reason.
#
#   scripts/gpu-check-hmem.sh DIR
#
#   GINLAB  program                    [default: target/release/ginlab]
#   DOUBLE  the compiled test double   [default: compiled with cc and libfabric's headers]
#
# Exit codes: 0 ok, 1 a false claim was not detected, 2 usage, 77 skipped with the reason.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if (($# != 1)) || [[ $1 == -* ]]; then
    echo 'usage: gpu-check-hmem.sh DIR, e.g. gpu-check-hmem.sh results' >&2
    exit 2
fi
mkdir -p "$1"
out=$(realpath "$1") ginlab=$(realpath "${GINLAB:-$here/../target/release/ginlab}") double=${DOUBLE:-$1/libhmem_double.so}
skip() { printf 'gpu-check-hmem.sh: skipped: %s\n' "$1" >&2; exit 77; }
[[ -e /dev/nvidiactl ]] || skip 'no NVIDIA GPU here'
if [[ ! -f $double ]]; then
    versions=$out/versions
    # The symbol versions that ginlab looks up, as in tests/gpu_memory.rs.
    printf 'FABRIC_1.0 { global: fi_version; fi_strerror; local: *; };\nFABRIC_1.1 { fi_fabric; } FABRIC_1.0;\n' >"$versions"
    printf 'FABRIC_1.3 { fi_getinfo; fi_freeinfo; fi_dupinfo; } FABRIC_1.1;\nFABRIC_1.4 { fi_tostr_r; } FABRIC_1.3;\n' >>"$versions"
    cc -shared -fPIC -D_GNU_SOURCE "-Wl,--version-script=$versions" -o "$double" "$here/../tests/hmem_double.c" ||
        skip 'the double cannot be compiled: a C compiler and the headers of libfabric are needed'
fi
double=$(realpath "$double")
HMEM_DOUBLE_OF=${GINLAB_LIBFABRIC:-libfabric.so.1}
export HMEM_DOUBLE_OF
cards=soft-efa:fast,cards=1
wrong=0
expect() { # FILE TEXT: the findings or rows in FILE must contain TEXT
    if grep -qF -- "$2" "$1"; then
        printf 'ok    %s: %s\n' "$(basename "$1")" "$2"
    else
        printf 'WRONG %s does not say: %s\n' "$(basename "$1")" "$2"
        wrong=1
    fi
}
look() { # NAME VARIABLE=VALUE...: runs doctor on GPU memory; exit code 3 is also valid
    local name=$1 code=0
    shift
    env "$@" timeout 60 "$ginlab" doctor -p "$cards" -d gpu --only gpu-direct,rma,gpu-register,smoke >"$out/$name.txt" 2>&1 || code=$?
    ((code == 0 || code == 3)) || { printf 'WRONG doctor, %s: exit code %d\n' "$name" "$code" && wrong=1; }
}
put() { # NAME MEMORY VARIABLE=VALUE...
    local name=$1 memory=$2 code=0
    shift 2
    env "$@" timeout 60 "$ginlab" proxy --np 2 -p "$cards" -d gpu --memory "$memory" -b 64K -e 64K -n 8 -w 2 -r 3 --mode nbi \
        --csv "$out/$name.csv" >"$out/$name.txt" 2>&1 || code=$?
    ((code == 0)) || { printf 'WRONG proxy, %s: exit code %d\n' "$name" "$code" && wrong=1; }
}
look doctor-none
expect "$out/doctor-none.txt" 'cannot register GPU memory'
for mode in copies lies registers; do look "doctor-$mode" GINLAB_LIBFABRIC="$double" HMEM_DOUBLE="$mode"; done
expect "$out/doctor-copies.txt" 'GPU memory (FI_HMEM) claimed, by CUDA copies of the provider'
expect "$out/doctor-lies.txt" 'GPU memory (FI_HMEM) claimed, but a write failed'
expect "$out/doctor-registers.txt" 'GPU memory (FI_HMEM) claimed, but a write failed'
put proxy-copies device GINLAB_LIBFABRIC="$double" HMEM_DOUBLE=copies
expect "$out/proxy-copies.csv" 'staged'
put proxy-auto auto GINLAB_LIBFABRIC="$double" HMEM_DOUBLE=copies
expect "$out/proxy-auto.csv" ',pinned,'
expect "$out/proxy-auto.txt" 'the payload is in pinned host memory, not in GPU memory: rank 0: '
exit "$wrong"
