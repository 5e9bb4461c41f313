#!/usr/bin/env bash
# Runs the tests, or the checks that take longer. Neither needs a GPU. Both stop at the first failure.
#
#   scripts/test.sh           build with clippy, all tests, PTX rules (make test). The tests themselves are the last step
#   scripts/test.sh check     documentation, headers of libfabric and rdma-core, programs of others over software NICs, loom,
#                             ptxas for all targets, pages, Miri, software NICs in a bare Debian 13 (make check)
#
#   GINLAB_SKIPS      listed: a test skipped for a reason that is not in tests/skips.txt is a failure
#   GINLAB_PTXAS      ptxas                 [default: .venv/bin/ptxas]
#   CARGO_TARGET_DIR  build directory       [default: target]
#   TMPDIR            files of tests        [default: memory, if /dev/shm has 2 GiB]
#
# Exit codes: 0 ok, 2 usage, otherwise that of the step that failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [[ $# -gt 1 || ${1:-check} != check ]]; then
    echo "test.sh: $*: expected nothing, or check" >&2
    exit 2
fi

# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
choose_kernel_compiler any
# One set of features and one profile, so that each crate is compiled once.
features=("${kernel_features[@]}" --features mpi)
target=${CARGO_TARGET_DIR:-target}
skipped=()
current=
what=tests
if [[ ${1:-} == check ]]; then what=checks; fi
declare -A beside=()
memory=
at_exit() {
    local code=$? group
    for group in "${beside[@]}"; do kill -- "-$group" 2>/dev/null || true; done
    if [[ -n $memory ]]; then rm -rf "$memory"; fi
    if ((code)); then printf '\ntest.sh: FAILED in: %s\n' "${current:-start}" >&2; fi
}
trap at_exit EXIT

step() {
    current=$1
    printf '\n=== %s (after %d s)\n' "$1" "$SECONDS"
}
# start NAME COMMAND...: runs the command in the background in its own process group. Writes its output to
# $target/NAME.out.
start() {
    set -m
    "${@:2}" >"$target/$1.out" 2>&1 &
    beside[$1]=$!
    set +m
}
# finish NAME: waits for the command; returns its exit code.
finish() {
    local group=${beside[$1]}
    unset "beside[$1]"
    wait "$group"
}
skip() {
    printf 'not run: %s\n' "$1"
    skipped+=("$current: $1")
    if [[ ${GINLAB_SKIPS:-} != listed ]]; then return; fi
    local start
    while IFS='#' read -r start _; do
        start=${start%"${start##*[! ]}"}
        if [[ -n $start && $1 == "$start"* ]]; then return; fi
    done <tests/skips.txt
    echo "skipped, and the reason is not in tests/skips.txt: $1" >&2
    exit 1
}
# The test that assembles all PTX must not be skipped.
if [[ -z ${GINLAB_PTXAS:-} ]]; then export GINLAB_PTXAS=$PWD/.venv/bin/ptxas; fi
if [[ ! -x $GINLAB_PTXAS ]]; then
    echo "no $GINLAB_PTXAS; run 'make setup' with a network once" >&2
    exit 1
fi

# unless_passed NAME TOOLS COMMAND...: runs the command with the files named on stdin, unless it has passed with the
# same files and tools before. For checks that depend on nothing else; saves 9 s of CPU time.
unless_passed() {
    local files key passing=$target/tmp/passed/$1
    mapfile -d '' -t files
    key=$({ printf '%s\n' "${@:2}"; sha256sum "${files[@]}"; } | sha256sum)
    if [[ $(cat "$passing" 2>/dev/null) == "$key" ]]; then
        echo 'passed before with these files and tools'
        return
    fi
    "${@:3}" "${files[@]}"
    mkdir -p "$(dirname "$passing")"
    echo "$key" >"$passing"
}

plain() { env -u RUSTC_WORKSPACE_WRAPPER "$@"; }
# Incremental compilation costs more here than it saves.
export CARGO_INCREMENTAL=0

# Clippy's compiler instead of rustc for our own crates, so that they are checked in the same pass as they are built.
# Clippy 0.1.96 only works with rustc 1.96.
clippy_fits() {
    local clippy rustc
    clippy=$(clippy-driver --version 2>/dev/null | awk '{print $2}') && rustc=$(release_of rustc) &&
        [[ $clippy == "0.${rustc%.*}" ]]
}
# Builds the targets of the tests, with the examples as programs.
build() {
    step 'build, checked by clippy'
    if clippy_fits; then
        export RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__
    else
        skip 'no clippy of the release of rustc'
    fi
    cargo test --quiet --workspace "${features[@]}" --no-run
}

# Tests that `make check` runs, because they take minutes of CPU time.
slow='test(/^ptxas_accepts/) | test(/^soft_efa2::runs_in_minimal/)'
# run_tests FILTER NAME...: runs tests; NAME are those of the filter without nextest.
run_tests() {
    # Three threads per core, because many tests wait for a deadline or a peer (two cores: 220 s; 252 s with two, 210 s
    # with four).
    local threads=$(($(nproc) * 3))
    # Files of tests are in memory if possible, which saves a twentieth of the time.
    if [[ -z ${TMPDIR:-} ]] && (($(df --output=avail -m /dev/shm 2>/dev/null | tail -n 1 || true) + 0 > 2048)); then
        memory=$(mktemp -d -p /dev/shm ginlab-test-XXXXXX)
        export TMPDIR=$memory
    fi
    # libfabric fills its endpoint buffers with zeros: small ones save 80 MB per endpoint over tcp and 185 MB over a
    # software NIC (a seventh and a twentieth of the CPU time). Both ends over tcp need the same sizes.
    # tests/command/common/mod.rs sets the same variables for the command, and explains the others.
    export FI_OFI_RXM_BUFFER_SIZE=1024 FI_OFI_RXM_CM_PROGRESS_INTERVAL=300 FI_OFI_RXM_MSG_RX_SIZE=64 FI_OFI_RXM_MSG_TX_SIZE=64
    export FI_EFA_RX_SIZE=64 FI_EFA_TX_SIZE=64
    # Saves 0.3 s per process that loads libfabric 1.17; see the script.
    local run=(scripts/hide-slow-libraries.sh "$target/hidden")
    if cargo nextest --version >/dev/null 2>&1; then
        # nextest would start itself between each test and the terminal, for Ctrl-Z: 3 ms per test.
        export NEXTEST_DOUBLE_SPAWN=0
        "${run[@]}" cargo nextest run --workspace "${features[@]}" --test-threads "$threads" -E "$1"
    else
        RUST_TEST_THREADS=$threads "${run[@]}" cargo test --workspace "${features[@]}" --tests -- "${@:2}"
    fi
}
print_skipped() {
    if ((${#skipped[@]})); then
        printf '\nNot run in this place:\n'
        printf '  %s\n' "${skipped[@]}"
    fi
}

test_matrix() {
    # Every mutation must fit the code.
    scripts/mutations.py worst --list >/dev/null && scripts/mutations.py nccl --list >/dev/null || return
    printf '%s\0' scripts/*.py scripts/tables/*.toml python/tests/test_matrix.py |
        unless_passed matrix "$(python3 --version)" sh -c 'exec python3 -m unittest python/tests/test_matrix.py' sh
}
tests() {
    step 'scripts parse'
    for script in scripts/*.sh; do bash -n "$script"; done
    if have shellcheck; then
        printf '%s\0' scripts/*.sh deploy/*.sh deploy/aws/*.sh deploy/slurm/*.sbatch | unless_passed shellcheck "$(shellcheck --version)" shellcheck
    else
        skip 'no shellcheck'
    fi

    step 'format'
    # Every file by name: rustfmt would otherwise follow `mod` lines and miss files included by macros or tools.
    if cargo fmt --version >/dev/null 2>&1; then
        find . -name '*.rs' -not -path "./target/*" -not -path "./$target/*" -not -path './.venv/*' -not -path './.git/*' -print0 | sort -z |
            unless_passed format "$(rustfmt --version; cat rustfmt.toml)" rustfmt --edition "$(awk -F '"' '/^edition/ {print $2}' Cargo.toml)" --check
    else
        skip 'no rustfmt'
    fi
    # Runs at the same time as the build, because it waits most of the time.
    if python3 -c 'import tomllib' 2>/dev/null; then start matrix test_matrix; fi
    build

    step 'Python package, and scripts/matrix.py'
    GINLAB_PROGRAM=$(realpath "$target")/debug/ginlab python3 -m unittest python/tests/test_ginlab.py
    if [[ -z ${beside[matrix]:-} ]]; then
        skip 'no Python 3.11, which scripts/matrix.py needs'
    elif ! finish matrix; then
        cat "$target/matrix.out"
        exit 1
    fi

    current='tests that take a cluster on this machine'
    for tool in slurmctld sshd kubectl; do
        have "$tool" || [[ -x /usr/sbin/$tool ]] || skip "no $tool: scripts/setup.sh labs installs slurm-wlm and openssh-server; kubectl comes from elsewhere"
    done
    print_skipped

    step 'tests'
    run_tests "not ($slow)" --skip ptxas_accepts --skip soft_efa2::runs_in_minimal
}

# Fetch packages of newer systems in the background. Users of a missing package report it.
fetch() {
    scripts/check-headers.sh --fetch || true
    if [[ -n $bare ]]; then nice scripts/fresh.sh --release trixie --only soft-efa --prepare --work "$target/fresh"; fi
}

# Explores the ring under loom, concurrently with all following steps and at low priority. Uses its own target
# directory, because another RUSTFLAGS would rebuild everything twice, and two single-threaded processes, because two
# threads of one process share the mapping of their stacks and take twice as long.
explore() {
    # Only the modules that are explored; optimizing all takes 24 s of CPU time.
    local loom=(plain cargo test -p kernels --no-default-features --features "puts,queue,direct" --test loom --profile loom --target-dir "$target/loom")
    local program
    renice -n 19 $BASHPID >/dev/null
    # Without the other modules some functions have no callers.
    export RUSTFLAGS='--cfg loom -A dead_code'
    "${loom[@]}" --no-run
    # An exploration is deterministic: skip it if it has completed for the same program, which cargo has just named.
    program=$(sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$target/loom.out")
    program=$(sha256sum <"$program")
    if [[ $(cat "$target/loom/explored" 2>/dev/null) == "$program" ]]; then return; fi
    "${loom[@]}" --quiet -- --test-threads 1 push:: &
    "${loom[@]}" --quiet -- --test-threads 1 --skip push::
    wait $!
    echo "$program" >"$target/loom/explored"
}

checks() {
    bare=
    if [[ $(id -u) == 0 ]] && have debootstrap; then bare=yes; fi
    mkdir -p "$target/fresh"
    start fetch fetch
    start loom explore
    build
    # As built by `make demo`: without PTX. (For the build without MPI see scripts/rustdoc.sh.)
    cargo test --quiet --workspace --no-default-features --features mpi --lib --example ranks --no-run

    start programs nice scripts/soft-efa-programs.py "$target/debug/ginlab" "$target/programs"

    step 'a bare Debian 13'
    fetched=yes
    finish fetch || fetched=
    if [[ -z $bare ]]; then
        skip 'it takes root and debootstrap'
    elif [[ -z $fetched ]]; then
        skip "no root file system: $(tail -n 1 "$target/fetch.out")"
    else
        echo "$target/fresh/matrix-trixie.tar"
    fi

    step 'documentation, and headers of libfabric 2.x and rdma-core'
    start headers scripts/check-headers.sh "${features[@]}"
    # Pages and tests of documentation, from the libraries built so far; `cargo doc` would check all dependencies again.
    export RUSTDOCFLAGS='-D warnings'
    RUSTDOC=$PWD/scripts/rustdoc.sh GINLAB_PAGES=$(realpath "$target")/doc cargo test --quiet --workspace "${features[@]}" --doc
    unset RUSTDOCFLAGS
    code=0
    finish headers || code=$?
    cat "$target/headers.out"
    ((!code)) || exit "$code"

    step 'programs of others over software NICs'
    code=0
    finish programs || code=$?
    cat "$target/programs.out"
    ((!code)) || exit "$code"
    # The rows are `program,version,skipped: reason,seconds`.
    while IFS= read -r reason; do skip "a program of others: $reason"; done < <(sed -n 's/,[0-9]*$//; s/^[^,]*,[^,]*,skipped: //p' "$target/programs.out")

    step 'notebook'
    # The kernel of the notebook is compiled with the same features as above, so that only it is compiled.
    PYTHONPATH=python GINLAB_PROGRAM=$(realpath "$target")/debug/ginlab GINLAB_SOURCE=. \
        GINLAB_CARGO="cargo build --quiet --workspace ${features[*]}" scripts/notebook.py docs/first-bug.ipynb

    step 'page of data/ in a browser'
    if have chromium || have chromium-browser || have google-chrome; then
        GINLAB=$target/debug/ginlab scripts/report.sh "$target/report"
        scripts/report-check.sh "$target/report/report.html"
    else
        skip 'no chromium to open the page of data/ (apt-get install chromium)'
    fi

    step 'Miri'
    miri=()
    if cargo miri --version >/dev/null 2>&1; then
        miri=(plain cargo miri)
    elif have rustup && cargo +nightly miri --version >/dev/null 2>&1; then
        miri=(plain cargo +nightly miri)
    fi
    if ((${#miri[@]})) && "${miri[@]}" setup >/dev/null 2>&1; then
        # Miri is slow: few cases, and only code that shares memory or counts manually.
        export MIRIFLAGS='-Zmiri-disable-isolation' PROPTEST_CASES=4
        "${miri[@]}" test --quiet --target-dir "$target/miri" -p cuda_std --lib
        "${miri[@]}" test --quiet --target-dir "$target/miri" -p kernels --test ring_stress -- every_command_once completed_ticket
        "${miri[@]}" test --quiet --target-dir "$target/miri" -p ginlab-proxy --lib -- tracker
        unset MIRIFLAGS PROPTEST_CASES
    else
        skip 'no cargo miri with its rust-src (rustup +nightly component add miri rust-src)'
    fi
    print_skipped

    step 'ptxas for all targets, and software NICs in a bare Debian 13'
    run_tests "$slow" ptxas_accepts soft_efa2::runs_in_minimal
    current='ring under loom'
    finish loom || {
        cat "$target/loom.out"
        exit 1
    }
}

"$what"
