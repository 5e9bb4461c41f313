#!/bin/sh
# Compares the declarations of crates/libfabric-sys and crates/soft_efa with the headers of Debian 13 (libfabric 2.x,
# rdma-core).
#
#   scripts/check-libfabric2.sh [CARGO ARGUMENTS...]     the arguments of the other tests
#   scripts/check-libfabric2.sh --fetch                  only fetch the packages
#
#   LIBFABRIC2_ROOT  directory with the unpacked packages [default: fetched into target/libfabric2]
#
# Uses its own apt state, so that nothing is installed on this machine. The libraries remain in target/libfabric2 for
# the tests of `-p soft-efa`. Exit codes: 0 ok, or skipped with a line "skipped: REASON" (no package, no libclang);
# otherwise a declaration differs.
set -eu
cd "$(dirname "$0")/.."

skip() { echo "skipped: $1"; exit 0; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
packages="libfabric-dev libfabric1 libibverbs-dev libibverbs1 librdmacm1t64 libnl-3-200 libnl-route-3-200 ibverbs-providers
    libpsm-infinipath1 libpsm2-2 libnuma1 libuuid1 libc6 libgcc-s1 libatomic1 libfabric-bin"
kept=${CARGO_TARGET_DIR:-target}/libfabric2
[ -n "${LIBFABRIC2_ROOT:-}" ] || ! [ -x "$kept/usr/bin/fi_pingpong" ] || LIBFABRIC2_ROOT=$kept
if [ -z "${LIBFABRIC2_ROOT:-}" ]; then
    if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then skip "no apt-get and dpkg here"; fi
    keys=
    for key in /usr/share/keyrings/debian-archive-trixie-automatic.gpg /usr/share/keyrings/debian-archive-keyring.gpg; do
        [ -z "$keys" ] && [ -r "$key" ] && keys=$key
    done
    [ -n "$keys" ] || skip "no key ring of Debian 13 (package debian-archive-keyring)"
    mkdir -p "$scratch/lists/partial" "$scratch/archives/partial" "$scratch/deb" "$scratch/root"
    echo "deb [signed-by=$keys] http://deb.debian.org/debian trixie main" >"$scratch/sources.list"
    apt_own() {
        apt-get -qq -o Dir::Etc::sourcelist="$scratch/sources.list" -o Dir::Etc::sourceparts=- \
            -o Dir::State::lists="$scratch/lists" -o Dir::Cache="$scratch" -o Dir::Cache::archives="$scratch/archives" \
            -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=2 -o Acquire::http::Timeout=30 "$@"
    }
    apt_own update >"$scratch/log" 2>&1 || skip "package lists of Debian 13: $(tail -n 1 "$scratch/log")"
    # shellcheck disable=SC2086  # a list
    (cd "$scratch/deb" && apt_own download $packages >"$scratch/log" 2>&1) ||
        skip "libfabric of Debian 13: $(tail -n 1 "$scratch/log")"
    for package in "$scratch"/deb/*.deb; do dpkg -x "$package" "$scratch/root"; done
    mkdir -p "$(dirname "$kept")"
    # An older directory may lack packages.
    rm -rf "$kept"
    mv "$scratch/root" "$kept"
    LIBFABRIC2_ROOT=$kept
fi
[ "${1:-}" != --fetch ] || exit 0

# Absolute paths; fails if a directory does not exist.
LIBFABRIC_INCLUDE_DIR=$(cd "$LIBFABRIC2_ROOT/usr/include" && pwd)
VERBS_INCLUDE_DIR=$LIBFABRIC_INCLUDE_DIR
export LIBFABRIC_INCLUDE_DIR VERBS_INCLUDE_DIR
scripts/check-headers.sh "$@" >"$scratch/result" 2>&1 || {
    cat "$scratch/result"
    exit 1
}
grep -E '^(ok|skipped): ' "$scratch/result"
