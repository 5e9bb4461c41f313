#!/usr/bin/env bash
# Compares the declarations of our crates with C headers of newer systems: libfabric 2.x and rdma-core of Debian 13, rdma-core 65 or newer of Debian
# sid. Unpacks their libraries, and libfabric 2.5.1 from the PyPI wheel mpich 5.0.2, for the tests of `-p soft-efa` and scripts/tables/soft-efa.toml.
#
#   scripts/check-headers.sh [CARGO ARGUMENTS...]     the arguments of the other tests; cargo would otherwise rebuild dependencies
#   scripts/check-headers.sh --fetch                  only fetch: target/libfabric2, target/rdma-core65, target/libfabric25
#
#   LIBFABRIC2_ROOT  directory with Debian 13's unpacked packages [default: target/libfabric2]
#
# Uses its own apt state, so that nothing is installed on this machine. Exit codes: 0 ok, or skipped with a line "skipped: REASON" (no package, no
# libclang); otherwise a declaration differs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# unpack SUITE DIR FILE PACKAGE...: unpacks packages of Debian into DIR, unless FILE exists. If that is not possible, prints the reason and fails.
unpack() {
    local suite=$1 kept=$2 file=$3 keys='' key own=$scratch/$1
    shift 3
    # An older directory may lack packages.
    if [[ -e $kept/$file ]]; then return; fi
    if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then echo 'skipped: no apt-get and dpkg here' && return 1; fi
    for key in "/usr/share/keyrings/debian-archive-$suite-automatic.gpg" /usr/share/keyrings/debian-archive-keyring.gpg; do
        if [[ -z $keys && -r $key ]]; then keys=$key; fi
    done
    if [[ -z $keys ]]; then echo 'skipped: no key ring of Debian (package debian-archive-keyring)' && return 1; fi
    mkdir -p "$own/lists/partial" "$own/archives/partial" "$own/deb" "$own/root"
    echo "deb [signed-by=$keys] http://deb.debian.org/debian $suite main" >"$own/sources.list"
    apt_own() {
        apt-get -qq -o Dir::Etc::sourcelist="$own/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$own/lists" -o Dir::Cache="$own" \
            -o Dir::Cache::archives="$own/archives" -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=2 -o Acquire::http::Timeout=30 "$@"
    }
    if ! apt_own update >"$own/log" 2>&1 || ! (cd "$own/deb" && apt_own download "$@" >"$own/log" 2>&1); then
        echo "skipped: packages of Debian $suite: $(tail -n 1 "$own/log")" && return 1
    fi
    for key in "$own"/deb/*.deb; do dpkg -x "$key" "$own/root"; done
    rm -rf "$kept"
    mv "$own/root" "$kept"
}
libfabric25() {
    local kept=$target/libfabric25
    if [[ ! -r $kept/libfabric.so.1 ]]; then
        if ! python3 -m pip --version >/dev/null 2>&1; then echo 'skipped: no pip here for libfabric 2.5' && return; fi
        if ! python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$scratch" mpich==5.0.2 >"$scratch/log" 2>&1; then
            echo "skipped: libfabric 2.5 of the wheel mpich: $(tail -n 1 "$scratch/log")" && return
        fi
        python3 -m zipfile -e "$scratch"/mpich-*.whl "$scratch/wheel"
        rm -rf "$kept"
        mkdir -p "$kept"
        cp -r "$scratch"/wheel/mpich-*.data/data/lib/mpich/libfabric.so.1 "$scratch"/wheel/mpich-*.data/data/lib/mpich/libfabric "$kept/"
    fi
    echo "ok: libfabric 2.5 is in $kept"
}

# compare LIBFABRIC VERBS: runs the tests of headers with these directories. clang reads headers for a second each time, so results for the same
# programs and headers are reused.
compare() {
    local headers key said program
    export LIBFABRIC_INCLUDE_DIR=$1 VERBS_INCLUDE_DIR=$2
    headers=$(find -L ${1:+"$1"} "$2" -name '*.h' | sort -u)
    # shellcheck disable=SC2086  # names without blanks
    key=$({ echo "$1:$2"; cat $programs $headers; } | sha256sum | cut -d ' ' -f 1)
    said=$target/tmp/passed/headers-$key
    if [[ ! -r $said ]]; then
        mkdir -p "$(dirname "$said")"
        for program in $programs; do
            "$program" --nocapture >>"$scratch/said" || { cat "$scratch/said" >&2; exit 1; }
        done
        # The result of a skipped test is not kept.
        if grep -q '^skipped: ' "$scratch/said"; then said=$scratch/said; else mv "$scratch/said" "$said"; fi
    fi
    grep -E '^(ok|skipped): ' "$said"
    rm -f "$scratch/said"
}

two=${LIBFABRIC2_ROOT:-$target/libfabric2}
packages=(libfabric-dev libfabric1 libibverbs-dev libibverbs1 librdmacm1t64 libnl-3-200 libnl-route-3-200 ibverbs-providers libpsm-infinipath1
    libpsm2-2 libnuma1 libuuid1 libc6 libgcc-s1 libatomic1 libfabric-bin)
has_two='' has_65=''
if unpack trixie "$two" usr/bin/fi_pingpong "${packages[@]}"; then has_two=yes; fi
if unpack sid "$target/rdma-core65" usr/include/infiniband/efadv.h libibverbs-dev; then has_65=yes; fi
libfabric25
if [[ ${1:-} == --fetch ]]; then exit; fi
programs=$(cargo test --workspace "$@" --no-run 2>&1 | sed -n 's/^ *Executable tests\/headers\.rs (\(.*\))$/\1/p')
if [[ -z $programs ]]; then
    cargo test --workspace "$@" --no-run
    echo 'cargo lists no program of tests/headers.rs'
    exit 1
fi
# Absolute paths, which fail if a directory does not exist.
if [[ -n $has_two ]]; then compare "$(realpath -e "$two/usr/include")" "$(realpath -e "$two/usr/include")"; fi
if [[ -n $has_65 ]]; then compare '' "$(realpath -e "$target/rdma-core65/usr/include")" | grep -E '^ok: .*functions agree|^skipped: ' | sed 's/^ok: /ok: rdma-core 65: /'; fi
