#!/usr/bin/env bash
# Installs what ginlab needs to be built and tested, and only what is missing; a second run changes nothing and works
# offline. For Debian 12 and 13 and Ubuntu, as root or with sudo. On other systems it names what is missing.
#
# Run here: Debian 12 as root. Not run here: Debian 13, Ubuntu, and the fall back to rustup.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The oldest Rust that builds the workspace: rust-version in Cargo.toml.
readonly RUST_MIN=1.88.0
# ptxas of CUDA 13.0: knows sm_80 to sm_121 and the PTX that LLVM writes. https://pypi.org/project/nvidia-cuda-nvcc/
readonly NVCC_WHEEL=13.0.88

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
# Says and does, with root's rights.
as_root() {
    say "running: $*"
    if [[ $(id -u) == 0 ]]; then "$@"; elif have sudo; then sudo "$@"; else
        fail "not root and no sudo; run this as root: $*"
    fi
}
at_least() { printf '%s\n%s\n' "$2" "$1" | sort -V -C; }

# A rustup that was installed moments ago is not on PATH yet; Ubuntu keeps versioned toolchains off it.
add_rust_paths() {
    local dir
    for dir in "${CARGO_HOME:-$HOME/.cargo}/bin" /usr/lib/rust-1.*/bin; do
        if [[ -d $dir && :$PATH: != *:$dir:* ]]; then PATH=$PATH:$dir; fi
    done
    hash -r
}
add_rust_paths

# --- what is there -------------------------------------------------------------------------------------------------

# Whether a compiler of this path is new enough. A rustup proxy without a toolchain fails here, as it should.
new_enough() {
    local version
    version=$("$1" --version 2>/dev/null | awk '{print $2}') && [[ -n $version ]] && at_least "${version%%-*}" "$RUST_MIN"
}
host_cargo() { have cargo && have rustc && new_enough cargo && new_enough rustc; }

# A toolchain for the kernels needs the sources of `core` beside the compiler: Debian's or a rustup toolchain's.
has_core_sources() {
    local sysroot
    sysroot=$("$1" --print sysroot 2>/dev/null) && [[ -f $sysroot/lib/rustlib/src/rust/library/core/src/lib.rs ]]
}
kernel_toolchain() {
    local rustc
    for rustc in rustc /usr/bin/rustc "${RUSTUP_HOME:-$HOME/.rustup}"/toolchains/*/bin/rustc; do
        if have "$rustc" && new_enough "$rustc" && has_core_sources "$rustc"; then return 0; fi
    done
    return 1
}
has_libclang() {
    [[ -n ${LIBCLANG_PATH:-} ]] || compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null
}
has_libfabric() {
    { have pkg-config && pkg-config --exists libfabric; } || [[ -f /opt/amazon/efa/include/rdma/fabric.h ]]
}
has_venv() { have python3 && python3 -c 'import ensurepip, venv' 2>/dev/null; }

missing=()
need() { # need PACKAGE CHECK...: the package is missing when the check fails
    local package=$1
    shift
    "$@" || missing+=("$package")
}
need build-essential eval 'have cc && have make && have ld'
need pkg-config have pkg-config
need libfabric-dev has_libfabric
need libfabric-bin eval 'have fi_info || [[ -x /opt/amazon/efa/bin/fi_info ]]'
need libclang-dev has_libclang
need libopenmpi-dev have mpicc
need openmpi-bin have mpirun
need iproute2 have ip
need python3-venv has_venv
need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt

# --- what is missing -----------------------------------------------------------------------------------------------

candidate() { apt-cache policy "$1" 2>/dev/null | awk '/Candidate:/ && $2 != "(none)" {print $2}'; }
offers() { # offers PACKAGE: whether apt has it, new enough
    local version
    version=$(candidate "$1")
    version=${version#*:}
    [[ -n $version ]] && at_least "${version%%[-+~]*}" "$RUST_MIN"
}

# The distribution's newest Rust as three packages: compiler, cargo, sources. Debian's rustc-web follows the needs of
# browsers and is new also in an old release (from bookworm-security, say); Ubuntu carries versioned packages.
distribution_rust() {
    local name
    if offers rustc-web && offers cargo-web && offers rust-web-src; then
        echo rustc-web cargo-web rust-web-src
        return
    fi
    name=$(apt-cache search --names-only '^rustc-1\.[0-9]+$' | awk '{print $1}' | sort -V | tail -n 1)
    if [[ -n $name ]] && offers "$name"; then
        echo "$name" "cargo-${name#rustc-}" "rust-${name#rustc-}-src"
        return
    fi
    if offers rustc && offers cargo && offers rust-src; then echo rustc cargo rust-src; fi
}

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

rust=ok
if ! host_cargo || ! kernel_toolchain; then rust=missing; fi

if ((${#missing[@]})) || [[ $rust == missing ]]; then
    if ! have apt-get; then
        if [[ $rust == missing ]]; then missing+=("Rust >= $RUST_MIN with rust-src"); fi
        fail "this system has no apt; install the counterparts of: ${missing[*]}"
    fi
fi

if ((${#missing[@]})); then
    say "missing: ${missing[*]}"
    apt_install "${missing[@]}"
fi

if [[ $rust == missing ]]; then
    say "missing: a Rust >= $RUST_MIN for the host, or one with the sources of core for the kernels"
    apt_update
    read -r -a packages <<<"$(distribution_rust)"
    if ((${#packages[@]})); then
        # rustfmt and clippy go with Debian's toolchain; without them `make test` says what it did not run.
        if [[ ${packages[0]} == rustc-web ]]; then
            for extra in rustfmt-web rust-web-clippy; do
                if [[ -n $(candidate "$extra") ]]; then packages+=("$extra"); fi
            done
        fi
        apt_install "${packages[@]}"
        add_rust_paths
    fi
    if ! host_cargo || ! kernel_toolchain; then
        say "the distribution has no Rust >= $RUST_MIN with sources; using rustup"
        if ! have rustup; then
            have curl || apt_install curl
            say "running: the installer from https://sh.rustup.rs"
            curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --no-modify-path --profile minimal
            add_rust_paths
        fi
        # The components follow the toolchain in use; an old default is brought up to date first.
        if ! host_cargo; then rustup update stable && rustup default stable; fi
        rustup component add rust-src rustfmt clippy
    fi
    host_cargo || fail "still no cargo and rustc >= $RUST_MIN; is an older one first on PATH? ($(command -v cargo || echo none))"
    kernel_toolchain || fail "still no Rust with the sources of core; install rustc-web and rust-web-src, or run: rustup component add rust-src"
fi

# --- ptxas ---------------------------------------------------------------------------------------------------------

# ptxas assembles the kernels' PTX without a GPU. It is needed by `make test` only, so its absence does not stop a demo.
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
if ! has_ptxas && ! install_ptxas; then
    say "warning: no ptxas; 'make test' will stop at its PTX step until 'make setup' has reached pypi.org once"
fi

say "ready: $(cargo --version); $(rustc --version); libfabric $(pkg-config --modversion libfabric 2>/dev/null || echo 'in /opt/amazon/efa')"
