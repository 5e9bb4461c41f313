#!/usr/bin/env bash
# Everything that can be tested without a GPU, in order, stopping at the first failure. The tests proper run last, so that
# their summary is the last thing to be read.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for dir in "${CARGO_HOME:-$HOME/.cargo}/bin" /usr/lib/rust-1.*/bin; do
    if [[ -d $dir && :$PATH: != *:$dir:* ]]; then PATH=$PATH:$dir; fi
done
target=${CARGO_TARGET_DIR:-target}
skipped=()
current=
trap 'code=$?; if ((code)); then printf "\ntest.sh: FAILED in: %s\n" "${current:-start}" >&2; fi' EXIT

step() {
    current=$1
    printf '\n=== %s (after %d s)\n' "$1" "$SECONDS"
}
skip() {
    printf 'not run: %s\n' "$1"
    skipped+=("$current: $1")
}
have() { command -v "$1" >/dev/null 2>&1; }

step 'scripts parse'
for script in scripts/*.sh; do bash -n "$script"; done
if have shellcheck; then shellcheck scripts/*.sh; else skip 'no shellcheck'; fi

step 'format'
if cargo fmt --version >/dev/null 2>&1; then cargo fmt --all --check; else skip 'no rustfmt'; fi

step 'clippy'
if cargo clippy --version >/dev/null 2>&1; then
    cargo clippy --quiet --workspace --all-targets -- -D warnings
    cargo clippy --quiet --all-targets --features mpi -- -D warnings
else
    skip 'no clippy'
fi

step 'without PTX'
# The emulated device alone: no kernel toolchain is looked for, and a GPU that is asked for is refused with the reason.
GINLAB_KERNEL_RUSTC=/nonexistent cargo check --quiet --no-default-features

step 'documentation'
RUSTDOCFLAGS='-D warnings' cargo doc --quiet --workspace --no-deps

step 'build, release'
cargo build --quiet --release --features mpi

step 'PTX follows the kernels, and only them'
newest_ptx() {
    find "$target/release/build" -path '*/ginlab-*/out/*' -name '*.ptx' -printf '%T@ %p\n' | sort -rn | head -n 1
}
before=$(newest_ptx)
cargo build --quiet --release --features mpi
if [[ $(newest_ptx) != "$before" ]]; then
    echo 'a build without any change compiled the kernels again' >&2
    exit 1
fi
touch kernels/src/lib.rs
started=$SECONDS
cargo build --quiet --release --features mpi
if [[ $(newest_ptx) == "$before" ]]; then
    echo 'a kernel source was touched and the PTX was not rebuilt' >&2
    exit 1
fi
printf 'from a touched kernel to the binary: %d s\n' "$((SECONDS - started))"

step 'PTX through ptxas'
ptxas=.venv/bin/ptxas
if [[ ! -x $ptxas ]]; then
    echo "no $ptxas; run 'make setup' with a network once" >&2
    exit 1
fi
# The newest PTX of each name: older builds leave theirs behind.
mapfile -t modules < <(
    find "$target/release/build" -path '*/ginlab-*/out/*' -name '*.ptx' -printf '%T@ %p\n' 2>/dev/null |
        sort -rn | awk '{name = $2; sub(/.*\//, "", name); if (!seen[name]++) print $2}'
)
if ((${#modules[@]} == 0)); then
    echo "the build left no PTX under $target/release/build/ginlab-*/out" >&2
    exit 1
fi
for module in "${modules[@]}"; do
    own=$(awk '$1 == ".target" {sub(/,.*/, "", $2); print $2; exit}' "$module")
    for arch in sm_80 sm_90 sm_100; do
        # PTX runs on its own target and on later ones; an "a" target only on itself.
        if [[ $own == *a ]]; then arch=$own; elif ((${arch#sm_} < ${own#sm_})); then continue; fi
        printf '%s (%s) for %s\n' "$(basename "$module")" "$own" "$arch"
        "$ptxas" -v -arch="$arch" -o /dev/null "$module" 2>&1 |
            awk '/error|fatal|warning/ {print; bad = 1} /spill stores/ && !/ 0 bytes spill stores/ {print} END {exit bad}'
        if [[ $own == *a ]]; then break; fi
    done
done

step 'libfabric 2.x headers'
if [[ -x scripts/check-libfabric2.sh ]]; then scripts/check-libfabric2.sh; else skip 'no scripts/check-libfabric2.sh'; fi

step 'page of data/ in a browser'
GINLAB=$target/release/ginlab scripts/report.sh "$target/report"
scripts/report-check.sh "$target/report/report.html"

step 'ring under loom'
if [[ -d kernels/tests/loom ]]; then
    # Its own folder: another RUSTFLAGS would rebuild everything twice.
    RUSTFLAGS='--cfg loom' cargo test --quiet -p kernels --test loom --release --target-dir "$target/loom"
else
    skip 'no kernels/tests/loom'
fi

step 'Miri'
miri=()
if cargo miri --version >/dev/null 2>&1; then
    miri=(cargo miri)
elif have rustup && cargo +nightly miri --version >/dev/null 2>&1; then
    miri=(cargo +nightly miri)
fi
if ((${#miri[@]})) && "${miri[@]}" setup >/dev/null 2>&1; then
    # Miri interprets, slowly: few cases, and only code that shares memory or counts by hand.
    export MIRIFLAGS='-Zmiri-disable-isolation' PROPTEST_CASES=4
    "${miri[@]}" test --quiet --target-dir "$target/miri" -p cuda_std --lib
    "${miri[@]}" test --quiet --target-dir "$target/miri" -p kernels --test ring_stress -- every_command_once a_done_ticket
    "${miri[@]}" test --quiet --target-dir "$target/miri" --no-default-features --lib -- proxy::tracker
    unset MIRIFLAGS PROPTEST_CASES
else
    skip 'no cargo miri with its rust-src (rustup +nightly component add miri rust-src)'
fi

step 'documentation tests'
cargo test --quiet --workspace --features mpi --doc

if ((${#skipped[@]})); then
    printf '\nNot run in this place:\n'
    printf '  %s\n' "${skipped[@]}"
fi

step 'tests'
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --workspace --features mpi
else
    cargo test --workspace --features mpi --all-targets
fi
