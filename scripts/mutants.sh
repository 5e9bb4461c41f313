#!/usr/bin/env bash
# Mutation tests: breaks the code in many small ways, one at a time, and lists what no test notices (scripts/mutants.md says
# why each of those may stay).
#
#   scripts/mutants.sh                        every file below: an hour or two on two idle cores
#   scripts/mutants.sh --shard 0/8            an eighth of the mutants of every file
#   scripts/mutants.sh host/proxy/engine.rs   these files only
#   scripts/mutants.sh --list                 what would be broken
#
# Other options go to `cargo mutants`. Results: target/mutants/ROOM/mutants.out (MUTANTS_OUT names another folder than
# target/mutants). A build of the whole library for each mutant would take a day, so each room below becomes a crate of its own:
# copies of its files under the same paths, a list of modules in place of host/lib.rs, and scripts/mutants/cuda.rs in place of
# host/cuda. Its tests are the unit tests of these files. The working tree can be edited meanwhile.
# Ends with 1 when less than nine in ten are caught, or when a survivor is not in scripts/mutants.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VERSION=27.1.0

# The files that are broken, by room.
declare -A BROKEN=(
    [engine]='host/rails/strategy.rs host/rails/lane.rs host/rails/stall.rs host/rails/ending.rs host/proxy/tracker.rs host/proxy/engine.rs host/proxy/engine/ending.rs host/proxy/engine/signalled.rs host/proxy/stage.rs'
    [flow]='host/flow/state.rs host/flow/state/posting.rs host/flow/state/ending.rs'
    [wire]='host/bootstrap/frame.rs host/bootstrap/hello.rs host/fabric/pairs.rs'
    [printed]='host/fabric/printed.rs host/pci/printed.rs'
)
# The files of host/ that they need beside themselves; a folder is all of it.
declare -A NEEDED=(
    [engine]='host/rails host/proxy/engine host/proxy/order.rs host/proxy/order host/proxy/trace.rs host/fabric/mod.rs host/fabric/layer.rs host/fabric/null.rs host/fabric/faulty.rs host/fabric/scripted.rs'
    [flow]='host/rails host/flow host/fabric/mod.rs host/fabric/layer.rs host/fabric/null.rs host/fabric/faulty.rs host/fabric/scripted.rs'
    [wire]='host/bootstrap/error.rs host/bootstrap/identity.rs host/text.rs'
    [printed]='host/fabric host/pci host/text.rs'
)
# What stands in host/lib.rs.
FABRIC='pub mod fabric; pub mod rails; pub mod cuda;'
declare -A MODULES=(
    [engine]="$FABRIC pub mod proxy { pub mod engine; pub mod order; pub mod stage; pub mod trace; pub mod tracker; }"
    [flow]="$FABRIC pub mod flow;"
    [wire]='pub mod text; pub mod fabric { pub mod pairs; } pub mod bootstrap { pub mod error; mod frame; mod hello; mod identity; }'
    [printed]='pub mod text; pub mod pci; pub mod fabric;'
)
# The modules that stay in host/fabric/mod.rs.
declare -A FABRICS=(
    [engine]='faulty|layer|null|scripted' [flow]='faulty|layer|null|scripted' [wire]=-
    [printed]='discover|libfabric|listing|null|printed|select'
)
ROOMS=(engine flow wire printed)

PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
if [[ $(cargo mutants --version 2>/dev/null) != "cargo-mutants $VERSION" ]]; then
    printf 'mutants.sh: installing cargo-mutants %s with cargo, once\n' "$VERSION" >&2
    cargo install --quiet --locked "cargo-mutants@$VERSION"
fi
if ! cargo nextest --version >/dev/null 2>&1; then
    printf 'mutants.sh: installing cargo-nextest with cargo, once\n' >&2
    cargo install --quiet --locked cargo-nextest
fi

options=()
files=()
while (($#)); do
    case $1 in
    *.rs)
        if [[ " ${BROKEN[*]} " != *" $1 "* ]]; then
            printf 'mutants.sh: %s is not among the files that it breaks: %s\n' "$1" "${BROKEN[*]}" >&2
            exit 2
        fi
        files+=("$1")
        ;;
    *) options+=("$1") ;;
    esac
    shift
done

out=${MUTANTS_OUT:-target/mutants}
mkdir -p "$out"
out=$(cd "$out" && pwd)
root=$PWD

# Fixtures, as seen from a room.
ln -sfn "$root/tests" "$out/tests"

# Makes the crate of a room.
make_crate() {
    local room=$1 crate=$out/$1 path
    rm -rf "$crate/host"
    mkdir -p "$crate/host" "$crate/.cargo"
    for path in ${BROKEN[$room]} ${NEEDED[$room]}; do
        mkdir -p "$crate/$(dirname "$path")"
        cp -r "$path" "$crate/$(dirname "$path")/"
    done
    cp scripts/mutants/cuda.rs "$crate/host/cuda.rs"
    printf '//! A part of ginlab, for scripts/mutants.sh.\n#![allow(dead_code, unused_imports)]\n%s\n' "${MODULES[$room]}" >"$crate/host/lib.rs"
    if [[ -f $crate/host/fabric/mod.rs ]]; then
        sed -i -E "/^(#\[cfg\(test\)\]|(pub(\(crate\))? )?mod (${FABRICS[$room]});)\$/b; /^(pub(\(crate\))? )?mod \w+;\$/d" "$crate/host/fabric/mod.rs"
    fi
    if [[ $room != printed && -f $crate/host/fabric/mod.rs ]]; then
        # One error of libfabric's is all that these rails speak of.
        cat >>"$crate/host/fabric/mod.rs" <<'STUB'

pub mod libfabric {
    use super::FabricError;
    pub(crate) enum Doing { RegisteringHost }
    pub(crate) fn error(rail: &str, _: Doing, operation: impl Into<String>, code: i64) -> FabricError {
        let text = String::from("as the system says");
        FabricError { rail: rail.to_owned(), operation: operation.into(), code: -code as i32, text, hint: String::new() }
    }
}
STUB
    fi
    if [[ $room == printed ]]; then
        # Nobody asks for the cards in software, which want the models.
        cat >>"$crate/host/fabric/mod.rs" <<'STUB'

pub mod soft {
    pub fn is_asked(_: &str) -> bool { false }
    pub fn label() -> Option<&'static str> { None }
}
STUB
    fi
    {
        printf '[package]\nname = "ginlab-%s"\nedition = "2024"\n\n[lib]\npath = "host/lib.rs"\n\n[workspace]\n\n' "$room"
        sed -n '/^\[workspace.dependencies\]/,/^$/p' Cargo.toml | sed "s|path = \"|path = \"$root/|"
        printf '[dependencies]\n'
        local name
        for name in card_model crossbeam-utils cuda_std getrandom hmac kernels libfabric-sys libloading nix serde serde_json sha2 slab thiserror tokio; do
            printf '%s.workspace = true\n' "$name"
        done
        printf '\n[dev-dependencies]\nproptest.workspace = true\ntempfile.workspace = true\ninsta.workspace = true\n'
        printf '\n[profile.dev]\ndebug = false\n[profile.dev.package."*"]\nopt-level = 1\n'
    } >"$crate/Cargo.toml"
    cp Cargo.lock "$crate/Cargo.lock"
    cat >"$crate/.cargo/mutants.toml" <<'TOML'
# What people read in a debugger.
exclude_re = ["<impl (fmt::)?Debug for .*>::fmt"]
additional_cargo_args = ["--lib"]
# It ends the other tests with the first one that fails: many mutants let some test wait for its bound.
test_tool = "nextest"
additional_cargo_test_args = ["--max-fail=1:immediate"]
# A test that finds nothing to wait for any more ends by its own bound; this is for those that have none.
minimum_test_timeout = 15.0
timeout_multiplier = 2.0
TOML
}

# What host/fabric/soft.rs carries is built by build.rs, which a room has not.
export GINLAB_SOFT_EFA_FILE=/dev/null
# Dependencies are compiled once for all rooms.
export CARGO_TARGET_DIR=$out/target
folders=()
for room in "${ROOMS[@]}"; do
    chosen=()
    for file in ${BROKEN[$room]}; do
        if ((${#files[@]} == 0)) || [[ " ${files[*]} " == *" $file "* ]]; then chosen+=(--file "$file"); fi
    done
    if ((${#chosen[@]} == 0)); then continue; fi
    make_crate "$room"
    code=0
    nice cargo mutants --dir "$out/$room" --in-place --output "$out/$room" "${chosen[@]}" "${options[@]}" || code=$?
    # 2: some were missed, 3: some ran into the timeout. Anything else is no result.
    if ((code != 0 && code != 2 && code != 3)); then exit "$code"; fi
    folders+=("$out/$room/mutants.out")
done
if [[ " ${options[*]} " == *" --list "* ]]; then exit 0; fi

python3 - scripts/mutants.md "${folders[@]}" <<'PY'
import collections
import json
import pathlib
import sys

known = pathlib.Path(sys.argv[1]).read_text()
counts = collections.defaultdict(collections.Counter)
unknown = []
for folder in sys.argv[2:]:
    for outcome in json.loads((pathlib.Path(folder) / "outcomes.json").read_text())["outcomes"]:
        if outcome["scenario"] == "Baseline":
            continue
        mutant, summary = outcome["scenario"]["Mutant"], outcome["summary"]
        counts[mutant["file"]][summary] += 1
        # Lines move; what was done in which function does not.
        name = mutant["name"].split(": ", 1)[1]
        if summary == "MissedMutant" and f"`{name}`" not in known:
            unknown.append(mutant["name"])
caught = missed = 0
print(f"{'file':<32} {'caught':>7} {'missed':>7} {'timeout':>8} {'unviable':>9}")
for file, count in sorted(counts.items()):
    row = [count[kind] for kind in ("CaughtMutant", "MissedMutant", "Timeout", "Unviable")]
    print(f"{file:<32} {row[0]:>7} {row[1]:>7} {row[2]:>8} {row[3]:>9}")
    # A mutant that never ends has been noticed.
    caught, missed = caught + row[0] + row[2], missed + row[1]
total = caught + missed
if total == 0:
    sys.exit("mutants.sh: no mutant was tested")
print(f"{caught} of {total} caught: {100 * caught / total:.1f} %")
for name in unknown:
    print(f"not in scripts/mutants.md: {name}")
sys.exit(1 if unknown or caught < 0.9 * total else 0)
PY
