#!/usr/bin/env bash
# Mutation tests: changes the code in many small ways, one at a time, and lists the changes that no test detects.
# docs/mutants.md explains why each listed survivor is accepted.
#
#   scripts/mutants.sh                        all files below: hours on two idle cores
#   scripts/mutants.sh --shard 0/8            an eighth of the mutants of every package
#   scripts/mutants.sh --sample 20            20 mutants of every package, and others with the same names
#   scripts/mutants.sh host/proxy/engine.rs   only these files (with --sample: per package)
#   scripts/mutants.sh --list                 list the mutants
#
#   SEED         seed of a sample           [default: 1]
#   MUTANTS_OUT  directory for results      [default: target/mutants]
#
# Other options go to `cargo mutants`. Results: MUTANTS_OUT/PACKAGE/mutants.out. Each package is tested by its own unit
# tests, in a copy of the tree. Exit codes: 0 ok, 1 fewer than nine in ten mutants were caught or a survivor is not in
# docs/mutants.md, 2 usage.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VERSION=27.1.0

# The files to mutate, by package.
declare -A BROKEN=(
    [ginlab-rails]='host/rails/strategy.rs host/rails/rail_queue.rs host/rails/stall.rs host/rails/ending.rs'
    [ginlab-proxy]='host/proxy/tracker.rs host/proxy/engine.rs host/proxy/engine/ending.rs host/proxy/engine/signalled.rs host/proxy/stage.rs
        host/proxy/signal_order.rs host/proxy/signal_order/credits.rs'
    [ginlab-flow]='host/flow/state.rs host/flow/state/posting.rs host/flow/state/ending.rs'
    [ginlab-bootstrap]='host/bootstrap/frame.rs host/bootstrap/handshake.rs host/bootstrap/seal.rs'
    [ginlab-fabric]='host/fabric/printed.rs host/fabric/wanted.rs host/fabric/select.rs host/fabric/libfabric/errors.rs host/fabric/libfabric/complete.rs
        host/fabric/worst/law.rs host/fabric/worst/claims.rs'
    [ginlab-gin]='host/gin/heap.rs host/gin/watch.rs'
    [soft_efa]='crates/soft_efa/src/memory.rs crates/soft_efa/src/queue.rs crates/soft_efa/src/handles.rs crates/soft_efa/src/deliver.rs
        crates/soft_efa/src/flight.rs crates/soft_efa/src/late.rs'
    [experiments]='experiments/all2all/pairs.rs'
    [ginlab-topology]='host/topology/pci/printed.rs'
)
all=$(tr -s ' \n' ' ' <<<"${BROKEN[*]}")
PACKAGES=(ginlab-rails ginlab-proxy ginlab-flow ginlab-bootstrap ginlab-fabric ginlab-gin soft_efa ginlab-topology experiments)

PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
if [[ $(cargo mutants --version 2>/dev/null) != "cargo-mutants $VERSION" ]]; then
    printf 'mutants.sh: installing cargo-mutants %s with cargo\n' "$VERSION" >&2
    cargo install --quiet --locked "cargo-mutants@$VERSION"
fi
if ! cargo nextest --version >/dev/null 2>&1; then
    printf 'mutants.sh: installing cargo-nextest with cargo\n' >&2
    cargo install --quiet --locked cargo-nextest
fi

options=()
files=()
sample=0
while (($#)); do
    case $1 in
    *.rs)
        if [[ " $all " != *" $1 "* ]]; then
            printf 'mutants.sh: %s is not one of the files to mutate: %s\n' "$1" "$all" >&2
            exit 2
        fi
        files+=("$1")
        ;;
    --sample)
        if [[ ! ${2:-} =~ ^[1-9][0-9]*$ ]]; then
            echo 'mutants.sh: --sample: expected a number from 1' >&2
            exit 2
        fi
        sample=$2
        shift
        ;;
    *) options+=("$1") ;;
    esac
    shift
done

out=${MUTANTS_OUT:-target/mutants}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cat >"$out/mutants.toml" <<'TOML'
# Output that people read only in a debugger.
exclude_re = ["<impl (fmt::)?Debug for .*>::fmt"]
additional_cargo_args = ["--lib"]
profile = "mutants"
# Ends the other tests after the first failure: many mutants make a test wait for its limit.
test_tool = "nextest"
additional_cargo_test_args = ["--max-fail=1:immediate"]
# A wait without progress ends at its own limit; this limit is for tests that have none.
minimum_test_timeout = 15.0
timeout_multiplier = 2.0
TOML

# Draws `sample` of the mutants on stdin and prints them as options; the same ones for the same seed and package.
draw() {
    python3 -c 'import random, re, sys
names = sorted(line.strip() for line in sys.stdin if line.strip())
for name in random.Random(f"{sys.argv[1]} {sys.argv[2]}").sample(names, min(int(sys.argv[3]), len(names))):
    print("--re", "^" + re.escape(name) + "$", sep="\n")' "${SEED:-1}" "$1" "$sample"
}

# Dependencies are compiled once, for all packages.
export CARGO_TARGET_DIR=$out/target
folders=()
for package in "${PACKAGES[@]}"; do
    chosen=()
    for file in ${BROKEN[$package]}; do
        if ((${#files[@]} == 0)) || [[ " ${files[*]} " == *" $file "* ]]; then chosen+=(--file "$file"); fi
    done
    if ((${#chosen[@]} == 0)); then continue; fi
    mkdir -p "$out/$package"
    code=0
    if ((sample)); then
        # Selected by full name, which is unique.
        mapfile -t drawn < <(cargo mutants --config "$out/mutants.toml" --package "$package" --list "${chosen[@]}" | draw "$package")
        if ((${#drawn[@]} == 0)); then
            printf 'mutants.sh: %s has no mutants for a sample\n' "$package" >&2
            exit 1
        fi
        chosen+=("${drawn[@]}")
    fi
    nice cargo mutants --config "$out/mutants.toml" --package "$package" --output "$out/$package" "${chosen[@]}" "${options[@]}" || code=$?
    # 2: some were missed, 3: some timed out. Other codes are errors.
    if ((code != 0 && code != 2 && code != 3)); then exit "$code"; fi
    folders+=("$out/$package/mutants.out")
done
if [[ " ${options[*]} " == *" --list "* ]]; then exit 0; fi

python3 - docs/mutants.md "${folders[@]}" <<'PY'
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
        # Without the line number, which changes.
        name = mutant["name"].split(": ", 1)[1]
        if summary == "MissedMutant" and f"`{name}`" not in known:
            unknown.append(mutant["name"])
caught = missed = 0
print(f"{'file':<32} {'caught':>7} {'missed':>7} {'timeout':>8} {'unviable':>9}")
for file, count in sorted(counts.items()):
    row = [count[kind] for kind in ("CaughtMutant", "MissedMutant", "Timeout", "Unviable")]
    print(f"{file:<32} {row[0]:>7} {row[1]:>7} {row[2]:>8} {row[3]:>9}")
    # A mutant that times out counts as caught.
    caught, missed = caught + row[0] + row[2], missed + row[1]
total = caught + missed
if total == 0:
    sys.exit("mutants.sh: no mutant was tested")
print(f"{caught} of {total} caught: {100 * caught / total:.1f} %")
for name in unknown:
    print(f"not in docs/mutants.md: {name}")
sys.exit(1 if unknown or caught < 0.9 * total else 0)
PY
