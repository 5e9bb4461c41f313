#!/usr/bin/env bash
# Installs missing packages. A second run changes nothing and works offline.
#
#   scripts/setup.sh demo    for `make demo`: a linker and Rust; libfabric and, with a GPU, the kernels' compiler, if available
#   scripts/setup.sh build   like demo, always with the kernels' compiler
#   scripts/setup.sh mpi     also for the feature `mpi`
#   scripts/setup.sh test    also for `make test` [default]
#   scripts/setup.sh labs    also for tests on a small cluster, which are otherwise skipped: Slurm, sshd, shellcheck. Not
#                            part of test, because Debian starts these services if there is a service manager
#
# For Debian 12 and 13 and Ubuntu, as root or with sudo; on other systems prints what is missing. scripts/fresh.sh runs
# it on bare Debian 12 and 13. Not run: Ubuntu, and the fallback to rustup's installer. Exit codes: 0 ok, 1 failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh

# ptxas of CUDA 13.0 supports sm_80 to sm_121 and the PTX that LLVM emits. https://pypi.org/project/nvidia-cuda-nvcc/
readonly NVCC_WHEEL=13.0.88

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
case ${1:-test} in
demo) level=1 ;;
build) level=2 ;;
mpi) level=3 ;;
test) level=4 ;;
labs) level=5 ;;
*) fail "unknown argument $1: expected demo, build, mpi, test or labs" ;;
esac
# A demo without a GPU runs without PTX, because the sources of core are a download of 45 MB.
needs_ptx() { ((level >= 2)) || [[ -e /dev/nvidiactl || -e /proc/driver/nvidia/version ]]; }

may_be_root() { [[ $(id -u) == 0 ]] || have sudo; }
# Prints a command and runs it as root.
as_root() {
    say "running: $*"
    if [[ $(id -u) == 0 ]]; then "$@"; elif have sudo; then sudo "$@"; else
        fail "not root and no sudo; run this as root: $*"
    fi
}

# --- installed -------------------------------------------------------------------------------------------------------

# The library that bindgen loads. (libclang-cpp.so is another one, from other packages.)
has_libclang() {
    if [[ -n ${LIBCLANG_PATH:-} ]]; then return 0; fi
    compgen -G '/usr/lib/llvm-*/lib/libclang.so*' >/dev/null || compgen -G '/usr/lib/llvm-*/lib/libclang-[0-9]*.so*' >/dev/null ||
        compgen -G '/usr/lib64/libclang.so*' >/dev/null
}
# Without a pipe into grep -q, which would terminate ldconfig and fail the pipe.
has_libfabric() {
    [[ $(/sbin/ldconfig -p 2>/dev/null) == *libfabric.so.1* ]] || compgen -G '/opt/amazon/efa/lib*/libfabric.so.1' >/dev/null
}
has_libfabric_headers() { [[ -f /usr/include/rdma/fabric.h || -f /opt/amazon/efa/include/rdma/fabric.h ]]; }
has_venv() { have python3 && python3 -c 'import ensurepip, venv' 2>/dev/null; }

missing=()
wanted=()
need() { # need PACKAGE CHECK...: the package is missing if the check fails
    local package=$1
    shift
    "$@" || missing+=("$package")
}
want() { # like need, for an optional package
    local package=$1
    shift
    "$@" || wanted+=("$package")
}
need gcc have cc
need libc6-dev test -e /usr/include/stdlib.h
need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
want libfabric1 has_libfabric
if ((level >= 3)); then
    need libopenmpi-dev have mpicc
    need libclang-dev has_libclang
fi
if ((level >= 4)); then
    need openmpi-bin have mpirun
    need libfabric-dev has_libfabric_headers
    need libfabric-bin eval 'have fi_info || [[ -x /opt/amazon/efa/bin/fi_info ]]'
    need iproute2 have ip
    need git have git
    need python3-venv has_venv
    want debootstrap have debootstrap
    want squashfs-tools have mksquashfs
fi
if ((level >= 5)); then
    need slurm-wlm test -x /usr/sbin/slurmctld
    need munge test -x /usr/sbin/munged
    need openssh-server test -x /usr/sbin/sshd
    need python3-yaml python3 -c 'import yaml'
    need shellcheck have shellcheck
fi

# --- missing ---------------------------------------------------------------------------------------------------------

updated=
apt_update() {
    if [[ -z $updated ]]; then
        as_root apt-get update -q
        updated=yes
    fi
}
apt_install() {
    apt_update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"
}
can_install() { have apt-get && may_be_root; }

# Prints all versions of a package that apt can install, one per line.
versions() { apt-cache madison "$1" 2>/dev/null | awk '{print $3}'; }
# Prints the version of a package for this Rust release; fails if there is none.
version_of_release() {
    local version
    while read -r version; do
        if [[ ${version#*:} == "$2"[+~-]* ]]; then
            echo "$version"
            return
        fi
    done < <(versions "$1")
    return 1
}

if ((${#wanted[@]})); then
    say "missing: ${wanted[*]}"
    if can_install && apt_update && [[ -n $(versions "${wanted[0]}") ]]; then
        missing+=("${wanted[@]}")
    else
        say "warning: cannot be installed from here; continuing without"
    fi
fi
if ((${#missing[@]})); then
    say "missing: ${missing[*]}"
    have apt-get || fail "this system has no apt; install the equivalents of: ${missing[*]}"
    apt_install "${missing[@]}"
fi

# Debian's rustc-web follows browsers and is recent even in old releases. It conflicts with the package rustup.
debian_rust() {
    local version
    have apt-get && may_be_root || return 1
    if dpkg -s rustup >/dev/null 2>&1; then return 1; fi
    apt_update
    local names=(rustc-web cargo-web libstd-rust-web-dev)
    if needs_ptx; then names+=(rust-web-src); fi
    # Clippy needs the rustc of its own release first on PATH.
    if ((level >= 4)) && { ! have rustc || [[ $(command -v rustc) == /usr/bin/rustc ]]; }; then
        names+=(rustfmt-web rust-web-clippy)
    fi
    # A version per package: only rebuilt packages have a suffix such as +b1.
    local packages=() name
    for name in "${names[@]}"; do
        version=$(version_of_release "$name" "$KERNEL_RUST") || return 1
        packages+=("$name=$version")
    done
    apt_install "${packages[@]}"
}
# Ubuntu has versioned packages; other distributions may have a newer release.
newest_distribution_rust() {
    local name release
    have apt-get && may_be_root || return 1
    apt_update
    for name in rustc-web $(apt-cache search --names-only '^rustc-1\.[0-9]+$' | awk '{print $1}' | sort -V -r) rustc; do
        release=$(versions "$name" | head -n 1)
        release=${release#*:}
        if [[ -n $release ]] && at_least "${release%%[-+~]*}" "$RUST_MIN"; then
            case $name in
            rustc-web) apt_install rustc-web cargo-web rust-web-src ;;
            rustc) apt_install rustc cargo rust-src ;;
            *) apt_install "$name" "cargo-${name#rustc-}" "rust-${name#rustc-}-src" ;;
            esac
            return
        fi
    done
    return 1
}

if needs_ptx; then
    rust_is_there() { kernel_rustc >/dev/null || [[ -n ${GINLAB_KERNEL_RUSTC:-} ]]; }
    what="rustc $KERNEL_RUST with the sources of core, which compiles the kernels"
else
    rust_is_there() { host_cargo; }
    what="a Rust >= $RUST_MIN"
fi
if ! rust_is_there; then
    say "missing: $what"
    if debian_rust; then
        add_rust_paths
    elif have rustup && needs_ptx; then
        say "running: rustup toolchain install $KERNEL_RUST --profile minimal --component rust-src"
        rustup toolchain install "$KERNEL_RUST" --profile minimal --component rust-src ||
            say "warning: rustup failed; continuing with the installed compilers"
    elif ! host_cargo; then
        newest_distribution_rust || true
        add_rust_paths
    fi
fi
if ! host_cargo; then
    say "no Rust >= $RUST_MIN from the distribution; using rustup"
    if ! have rustup; then
        if ! have curl; then apt_install curl; fi
        say "running: the installer from https://sh.rustup.rs"
        curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs |
            sh -s -- -y --no-modify-path --profile minimal --default-toolchain "$KERNEL_RUST" --component rust-src,rustfmt,clippy
        add_rust_paths
    fi
    host_cargo || { rustup update stable && rustup default stable; }
    host_cargo || fail "no cargo and rustc >= $RUST_MIN; is an older one first on PATH? ($(command -v cargo || echo none))"
fi

# --- ptxas ---------------------------------------------------------------------------------------------------------

# ptxas assembles the kernels' PTX in tests, without a GPU.
has_ptxas() { [[ $(.venv/bin/ptxas --version 2>/dev/null) == *"V$NVCC_WHEEL"* ]]; }
install_ptxas() {
    local found
    say "installing ptxas (nvidia-cuda-nvcc $NVCC_WHEEL from PyPI) into .venv"
    if ! .venv/bin/python -c 'import pip' 2>/dev/null; then python3 -m venv --clear .venv || return 1; fi
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps "nvidia-cuda-nvcc==$NVCC_WHEEL" || return 1
    found=$(find "$PWD/.venv/lib" -path '*/bin/ptxas' -type f -print -quit)
    [[ -n $found ]] || return 1
    # pip drops the mode bits of some wheels.
    chmod +x "$found"
    ln -sfn "$found" .venv/bin/ptxas
    has_ptxas
}
if ((level >= 4)) && ! has_ptxas && ! install_ptxas; then
    say "warning: no ptxas; 'make test' stops at its PTX step until 'make setup' has run once with access to pypi.org"
fi

say "ready: $(cargo --version)"
