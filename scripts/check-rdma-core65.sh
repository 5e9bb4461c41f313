#!/bin/sh
# Fetches newer libraries than those of Debian 13, for crates/soft_efa and crates/verbs-sys:
#  - compares their declarations with the headers of rdma-core 65 or newer from Debian sid;
#  - unpacks libfabric 2.5.1 from the PyPI wheel mpich 5.0.2 into target/libfabric25, for scripts/tables/soft-efa.toml.
#
#   scripts/check-rdma-core65.sh [CARGO ARGUMENTS...]     the arguments of the other tests
#   scripts/check-rdma-core65.sh --fetch                  only fetch
#
# Installs nothing on this machine. Exit codes: 0 ok, or skipped with a line "skipped: REASON" (nothing to fetch, no
# libclang); otherwise a declaration differs.
set -eu
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target"

# Fetches the headers into target/rdma-core65. If that is not possible, prints the reason and returns 1.
headers() {
    kept=$target/rdma-core65
    if ! [ -r "$kept/usr/include/infiniband/efadv.h" ]; then
        if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then echo "skipped: no apt-get and dpkg here"; return 1; fi
        key=/usr/share/keyrings/debian-archive-keyring.gpg
        [ -r "$key" ] || { echo "skipped: no key ring of Debian (package debian-archive-keyring)"; return 1; }
        mkdir -p "$scratch/lists/partial" "$scratch/archives/partial" "$scratch/root"
        echo "deb [signed-by=$key] http://deb.debian.org/debian sid main" >"$scratch/sources.list"
        apt_own() {
            apt-get -qq -o Dir::Etc::sourcelist="$scratch/sources.list" -o Dir::Etc::sourceparts=- \
                -o Dir::State::lists="$scratch/lists" -o Dir::Cache="$scratch" -o Dir::Cache::archives="$scratch/archives" \
                -o APT::Sandbox::User=root -o Acquire::Languages=none -o Acquire::Retries=2 -o Acquire::http::Timeout=30 "$@"
        }
        if ! apt_own update >"$scratch/log" 2>&1 || ! (cd "$scratch" && apt_own download libibverbs-dev >"$scratch/log" 2>&1); then
            echo "skipped: libibverbs-dev of Debian sid: $(tail -n 1 "$scratch/log")"
            return 1
        fi
        dpkg -x "$scratch"/libibverbs-dev_*.deb "$scratch/root"
        rm -rf "$kept"
        mv "$scratch/root" "$kept"
    fi
}

if headers && [ "${1:-}" != --fetch ]; then
    # Absolute path; fails if the directory does not exist.
    VERBS_INCLUDE_DIR=$(cd "$target/rdma-core65/usr/include" && pwd)
    export VERBS_INCLUDE_DIR
    scripts/check-headers.sh "$@" >"$scratch/result" 2>&1 || {
        cat "$scratch/result"
        exit 1
    }
    grep -E '^ok: .*functions agree|^skipped: ' "$scratch/result" | sed 's/^ok: /ok: rdma-core 65: /'
fi

kept=$target/libfabric25
if ! [ -r "$kept/libfabric.so.1" ]; then
    if ! python3 -m pip --version >/dev/null 2>&1; then echo "skipped: no pip here for libfabric 2.5"; exit 0; fi
    python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$scratch" mpich==5.0.2 >"$scratch/log" 2>&1 || {
        echo "skipped: libfabric 2.5 of the wheel mpich: $(tail -n 1 "$scratch/log")"
        exit 0
    }
    python3 -m zipfile -e "$scratch"/mpich-*.whl "$scratch/wheel"
    rm -rf "$kept"
    mkdir -p "$kept"
    cp -r "$scratch"/wheel/mpich-*.data/data/lib/mpich/libfabric.so.1 "$scratch"/wheel/mpich-*.data/data/lib/mpich/libfabric "$kept/"
fi
echo "ok: libfabric 2.5 is in $kept"
