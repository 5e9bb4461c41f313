#!/bin/sh
# Compile test against the libfabric 2.x headers of Debian 13: libfabric-sys and the library of ginlab are checked (not
# linked, not run). The headers come through an apt state of their own, so nothing on this machine is installed or changed.
# Prints "skipped: why" and exits 0 when the package cannot be fetched; any compile error exits non-zero.
set -eu
cd "$(dirname "$0")/.."

skip() { echo "skipped: $1"; exit 0; }
for tool in apt-get dpkg; do command -v "$tool" >/dev/null || skip "no $tool here"; done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ -z "${LIBFABRIC2_ROOT:-}" ]; then
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
    (cd "$scratch/deb" && apt_own download libfabric-dev >"$scratch/log" 2>&1) ||
        skip "libfabric-dev of Debian 13: $(tail -n 1 "$scratch/log")"
    dpkg -x "$scratch"/deb/libfabric-dev_*.deb "$scratch/root"
    LIBFABRIC2_ROOT=$scratch/root
fi

LIBFABRIC_INCLUDE_DIR=$LIBFABRIC2_ROOT/usr/include
LIBFABRIC_LIB_DIR=$(dirname "$(find "$LIBFABRIC2_ROOT/usr/lib" -name 'libfabric.so' | head -n 1)")
export LIBFABRIC_INCLUDE_DIR LIBFABRIC_LIB_DIR
version=$(awk '/define FI_(MAJOR|MINOR|REVISION)_VERSION/ {printf "%s%s", dot, $3; dot = "."}' \
    "$LIBFABRIC_INCLUDE_DIR/rdma/fabric.h")
# A target folder of its own: the everyday build keeps its bindings of the installed headers.
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/libfabric2
export CARGO_TARGET_DIR
cargo check --quiet -p libfabric-sys
cargo check --quiet -p ginlab --lib --no-default-features
echo "ok: compiles with the headers of libfabric $version"
