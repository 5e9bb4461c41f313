#!/usr/bin/env bash
# Everything that can be tested without a GPU, in order, stopping at the first failure. The tests proper run last, so that
# their summary is the last thing to be read.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
choose_kernel_compiler any
# One set of features and one profile, so that each crate is compiled once to be checked and once to be run.
features=("${kernel_features[@]}" --features mpi)
target=${CARGO_TARGET_DIR:-target}
skipped=()
current=
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
# start NAME COMMAND...: beside what follows, in a process group of its own, which ends as a whole; what it says goes to $target/NAME.out.
start() {
    set -m
    "${@:2}" >"$target/$1.out" 2>&1 &
    beside[$1]=$!
    set +m
}
# Waits for it; its exit code.
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
# The test that takes all PTX through it must not be skipped here.
if [[ -z ${GINLAB_PTXAS:-} ]]; then export GINLAB_PTXAS=$PWD/.venv/bin/ptxas; fi
if [[ ! -x $GINLAB_PTXAS ]]; then
    echo "no $GINLAB_PTXAS; run 'make setup' with a network once" >&2
    exit 1
fi

# unless_passed NAME TOOLS COMMAND...: the command with the files whose names come in, unless it has passed with the same files and tools before. For checks
# that nothing else determines: they take 9 s of a core.
unless_passed() {
    local files key passing=$target/tmp/passed/$1
    mapfile -d '' -t files
    key=$({ printf '%s\n' "${@:2}"; sha256sum "${files[@]}"; } | sha256sum)
    if [[ $(cat "$passing" 2>/dev/null) == "$key" ]]; then
        echo 'passed with these files and tools before'
        return
    fi
    "${@:3}" "${files[@]}"
    mkdir -p "$(dirname "$passing")"
    echo "$key" >"$passing"
}

step 'scripts parse'
for script in scripts/*.sh; do bash -n "$script"; done
if have shellcheck; then
    printf '%s\0' scripts/*.sh deploy/*.sh deploy/aws/*.sh deploy/slurm/*.sbatch | unless_passed shellcheck "$(shellcheck --version)" shellcheck
else
    skip 'no shellcheck'
fi

step 'format'
# Every file by its name: rustfmt would otherwise follow `mod` lines, and not see what a macro or another tool includes.
if cargo fmt --version >/dev/null 2>&1; then
    find . -name '*.rs' -not -path "./target/*" -not -path "./$target/*" -not -path './.venv/*' -not -path './.git/*' -print0 | sort -z |
        unless_passed format "$(rustfmt --version; cat rustfmt.toml)" rustfmt --edition "$(awk -F '"' '/^edition/ {print $2}' Cargo.toml)" --check
else
    skip 'no rustfmt'
fi

# Packages of newer systems come meanwhile: what is missing at the end is said where it is used.
fetch() {
    scripts/check-libfabric2.sh --fetch || true
    scripts/check-rdma-core65.sh --fetch || true
    if [[ -n $bare ]]; then nice scripts/fresh.sh --release trixie --only soft-efa --prepare --work "$target/fresh"; fi
}
bare=
if [[ $(id -u) == 0 ]] && have debootstrap; then bare=yes; fi
mkdir -p "$target/fresh"
start fetch fetch

plain() { env -u RUSTC_WORKSPACE_WRAPPER "$@"; }
# What the next edit would spare costs more here than it spares.
export CARGO_INCREMENTAL=0

# The ring under loom, from here on beside everything: it takes what documentation, downloads and tests that wait leave of the processors (from
# nothing on two cores 35 to 48 of 100 of the 60 s of documentation and headers, half of 40 s behind the tests). It says something when it fails.
# Its own folder: another RUSTFLAGS would rebuild everything twice. Two processes of one thread each: two threads of one process share
# what maps their stacks, and take twice as long.
explore() {
    # Of the modules those that it explores: to optimise all of them takes 24 s of a core.
    local loom=(plain cargo test -p kernels --no-default-features --features "puts,queue,direct" --test loom --profile loom --target-dir "$target/loom")
    local program
    renice -n 19 $BASHPID >/dev/null
    # Without the other modules some functions have no callers.
    export RUSTFLAGS='--cfg loom -A dead_code'
    "${loom[@]}" --no-run
    # An exploration is the same each time: one that has been whole is not repeated for the same program, which cargo has just named.
    program=$(sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$target/loom.out")
    program=$(sha256sum <"$program")
    if [[ $(cat "$target/loom/explored" 2>/dev/null) == "$program" ]]; then return; fi
    "${loom[@]}" --quiet -- --test-threads 1 push:: &
    "${loom[@]}" --quiet -- --test-threads 1 --skip push::
    wait $!
    echo "$program" >"$target/loom/explored"
}
start loom explore

# Clippy's compiler in place of rustc for our own crates: what it checks is built in the same pass (200 s of 900 from nothing on two
# cores went into a pass of its own, with all dependencies checked for it). Clippy 0.1.96 goes with rustc 1.96 alone.
clippy_fits() {
    local clippy rustc
    clippy=$(clippy-driver --version 2>/dev/null | awk '{print $2}') && rustc=$(release_of rustc) &&
        [[ $clippy == "0.${rustc%.*}" ]]
}
step 'build, checked by clippy'
if clippy_fits; then
    export RUSTC_WORKSPACE_WRAPPER=clippy-driver CLIPPY_ARGS=-Dwarnings__CLIPPY_HACKERY__
else
    skip 'no clippy of the release of rustc'
fi
# As `make demo` builds it: without PTX. (Without MPI: scripts/rustdoc.sh.)
cargo test --quiet --workspace --no-default-features --features mpi --lib --example ranks --no-run
# The same targets as the tests below have, the examples as programs.
cargo test --quiet --workspace "${features[@]}" --no-run

step 'a bare Debian 13'
fetched=yes
finish fetch || fetched=
if [[ -z $bare ]]; then
    skip 'it takes root and debootstrap'
elif [[ -z $fetched ]]; then
    skip "no root file system: $(tail -n 1 "$target/fetch.out")"
else
    echo "$target/fresh/soft-efa-trixie.tar"
fi

step 'documentation, and headers of libfabric 2.x and rdma-core'
headers=(check-libfabric2 check-rdma-core65)
for name in "${headers[@]}"; do start "$name" "scripts/$name.sh" "${features[@]}"; done
# Its pages and its tests from the libraries that are built by now; `cargo doc` would have all dependencies checked once more.
export RUSTDOCFLAGS='-D warnings'
RUSTDOC=$PWD/scripts/rustdoc.sh GINLAB_PAGES=$(realpath "$target")/doc cargo test --quiet --workspace "${features[@]}" --doc
unset RUSTDOCFLAGS
for name in "${headers[@]}"; do
    code=0
    finish "$name" || code=$?
    cat "$target/$name.out"
    ((!code)) || exit "$code"
done

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
    # Miri interprets, slowly: few cases, and only code that shares memory or counts by hand.
    export MIRIFLAGS='-Zmiri-disable-isolation' PROPTEST_CASES=4
    "${miri[@]}" test --quiet --target-dir "$target/miri" -p cuda_std --lib
    "${miri[@]}" test --quiet --target-dir "$target/miri" -p kernels --test ring_stress -- every_command_once a_done_ticket
    "${miri[@]}" test --quiet --target-dir "$target/miri" -p ginlab-proxy --lib -- tracker
    unset MIRIFLAGS PROPTEST_CASES
else
    skip 'no cargo miri with its rust-src (rustup +nightly component add miri rust-src)'
fi

current='tests that take a cluster on this machine'
for tool in slurmctld sshd kubectl; do
    have "$tool" || [[ -x /usr/sbin/$tool ]] || skip "no $tool: scripts/setup.sh labs installs slurm-wlm and openssh-server; kubectl comes from elsewhere"
done
if ((${#skipped[@]})); then
    printf '\nNot run in this place:\n'
    printf '  %s\n' "${skipped[@]}"
fi

step 'tests'
# Many tests wait for a deadline or for a peer: three for each core (220 s on two cores; 252 by two, 210 by four).
threads=$(($(nproc) * 3))
# Files that tests make lie in memory where there is some: one part in twenty of the time went to the disk's file system.
if [[ -z ${TMPDIR:-} ]] && (($(df --output=avail -m /dev/shm 2>/dev/null | tail -n 1 || true) + 0 > 2048)); then
    memory=$(mktemp -d -p /dev/shm ginlab-test-XXXXXX)
    export TMPDIR=$memory
fi
# libfabric fills the buffers of an endpoint with zeros, which are 80 MB over tcp otherwise and 185 over a card of soft_efa (one part in
# seven and one in twenty of the processors' time); two ends over tcp with different ones do not connect.
# tests/command/common/mod.rs gives the command the same ones, and says what the others are for.
export FI_OFI_RXM_BUFFER_SIZE=1024 FI_OFI_RXM_CM_PROGRESS_INTERVAL=300 FI_OFI_RXM_MSG_RX_SIZE=64 FI_OFI_RXM_MSG_TX_SIZE=64
export FI_EFA_RX_SIZE=64 FI_EFA_TX_SIZE=64
# What each process that loads libfabric 1.17 would pay for (0.3 s; the script says for what).
run=(scripts/hide-slow-libraries.sh "$target/hidden")
if cargo nextest --version >/dev/null 2>&1; then
    # nextest starts itself between each test and the shell's terminal, so that Ctrl-Z stops both: 3 ms for each test.
    export NEXTEST_DOUBLE_SPAWN=0
    "${run[@]}" cargo nextest run --workspace "${features[@]}" --test-threads "$threads"
else
    RUST_TEST_THREADS=$threads "${run[@]}" cargo test --workspace "${features[@]}" --tests
fi
current='ring under loom'
finish loom || {
    cat "$target/loom.out"
    exit 1
}
