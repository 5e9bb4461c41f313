#!/usr/bin/env bash
# Everything that can be tested without a GPU, in order, stopping at the first failure. The tests proper run last, so that
# their summary is the last thing to be read.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
choose_kernel_compiler
# One set of features and one profile, so that each crate is compiled once to be checked and once to be run.
features=("${kernel_features[@]}" --features mpi)
target=${CARGO_TARGET_DIR:-target}
skipped=()
current=
edited=
at_exit() {
    local code=$?
    if [[ -n $edited ]]; then cp -p "$target/before-edit" "$edited"; fi
    if ((code)); then printf '\ntest.sh: FAILED in: %s\n' "${current:-start}" >&2; fi
}
trap at_exit EXIT

step() {
    current=$1
    printf '\n=== %s (after %d s)\n' "$1" "$SECONDS"
}
skip() {
    printf 'not run: %s\n' "$1"
    skipped+=("$current: $1")
}
# The test that takes all PTX through it must not be skipped here.
if [[ -z ${GINLAB_PTXAS:-} ]]; then export GINLAB_PTXAS=$PWD/.venv/bin/ptxas; fi
if [[ ! -x $GINLAB_PTXAS ]]; then
    echo "no $GINLAB_PTXAS; run 'make setup' with a network once" >&2
    exit 1
fi

step 'scripts parse'
for script in scripts/*.sh; do bash -n "$script"; done
if have shellcheck; then shellcheck scripts/*.sh deploy/ranks.sh deploy/slurm/*.sbatch; else skip 'no shellcheck'; fi

step 'format'
if cargo fmt --version >/dev/null 2>&1; then cargo fmt --all --check; else skip 'no rustfmt'; fi

step 'clippy'
# Clippy 0.1.96 goes with rustc 1.96 alone.
clippy_fits() {
    local clippy rustc
    clippy=$(cargo clippy --version 2>/dev/null | awk '{print $2}') && rustc=$(release_of rustc) &&
        [[ $clippy == "0.${rustc%.*}" ]]
}
if clippy_fits; then
    cargo clippy --quiet --workspace --all-targets "${features[@]}" -- -D warnings
    # The emulated device alone, without MPI: no kernel toolchain is looked for.
    GINLAB_KERNEL_RUSTC=/nonexistent cargo clippy --quiet --no-default-features -- -D warnings
else
    skip 'no clippy of the release of rustc'
    GINLAB_KERNEL_RUSTC=/nonexistent cargo check --quiet --no-default-features
fi

step 'documentation'
RUSTDOCFLAGS='-D warnings' cargo doc --quiet --workspace --no-deps "${features[@]}"

step 'PTX follows the kernels, and only them'
compiled() { find "$target/kernels" -name 'kernels*-*.ptx' -printf . 2>/dev/null | wc -c; }
# A check of the libraries runs the build script, as a build does; the documentation has checked what they use.
follow() { cargo check --quiet --workspace --lib "${features[@]}"; }
if [[ ${kernel_features[*]} != *no-default* ]]; then
    follow
    # An edit, taken back whatever happens. The number makes it one that was never compiled.
    cp -p kernels/src/lib.rs "$target/before-edit"
    edited=kernels/src/lib.rs
    before=$(compiled)
    echo "// $(date +%s%N)" >>"$edited"
    follow
    cp "$target/before-edit" "$edited"
    edited=
    after=$(compiled)
    if ((after != before + 3)); then
        echo "a kernel source was edited, and $((after - before)) of 3 PTX modules were compiled again" >&2
        exit 1
    fi
    follow
    if (($(compiled) != after)); then
        echo 'kernel sources of the same words were compiled again' >&2
        exit 1
    fi
    # As old as it was: what was built before the edit need not be built again.
    touch -r "$target/before-edit" kernels/src/lib.rs
fi

step 'build'
# With the examples as the tests below have them.
cargo test --quiet --workspace --all-targets "${features[@]}" --no-run

step 'libfabric 2.x headers'
scripts/check-libfabric2.sh "${features[@]}"

step 'page of data/ in a browser'
GINLAB=$target/debug/ginlab scripts/report.sh "$target/report"
scripts/report-check.sh "$target/report/report.html"

step 'ring under loom'
# Its own folder: another RUSTFLAGS would rebuild everything twice. Two processes of one thread each: two threads of one process share
# what maps their stacks, and take twice as long.
export RUSTFLAGS='--cfg loom'
loom=(cargo test --quiet -p kernels --test loom --profile loom --target-dir "$target/loom")
"${loom[@]}" --no-run
"${loom[@]}" -- --test-threads 1 push:: >"$target/loom/push.out" 2>&1 &
"${loom[@]}" -- --test-threads 1 --skip push::
if ! wait $!; then
    cat "$target/loom/push.out"
    exit 1
fi
unset RUSTFLAGS

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
    "${miri[@]}" test --quiet --target-dir "$target/miri" -p ginlab-host --lib -- proxy::tracker
    unset MIRIFLAGS PROPTEST_CASES
else
    skip 'no cargo miri with its rust-src (rustup +nightly component add miri rust-src)'
fi

step 'documentation tests'
cargo test --quiet --workspace "${features[@]}" --doc

if ((${#skipped[@]})); then
    printf '\nNot run in this place:\n'
    printf '  %s\n' "${skipped[@]}"
fi

step 'tests'
# Many tests wait for a deadline or for a peer: two for each core (144 s in place of 198 on two cores).
threads=$(($(nproc) * 2))
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --workspace "${features[@]}" --test-threads "$threads"
else
    RUST_TEST_THREADS=$threads cargo test --workspace "${features[@]}" --all-targets
fi
