#!/usr/bin/env bash
# Mutation tests: breaks the code in many small ways, one at a time, and lists what no test notices (scripts/mutants.md says
# why each of those may stay).
#
#   scripts/mutants.sh                        every file below: hours on two idle cores
#   scripts/mutants.sh --shard 0/8            an eighth of the mutants of every package
#   scripts/mutants.sh --sample 20            20 mutants of every package and what shares their names, the same ones for the same SEED [1]
#   scripts/mutants.sh host/proxy/engine.rs   these files only (with a sample: so many of theirs in each package)
#   scripts/mutants.sh --list                 what would be broken
#
# Other options go to `cargo mutants`. Results: target/mutants/PACKAGE/mutants.out (MUTANTS_OUT names another folder than
# target/mutants). Each package is broken and tested alone, by its unit tests, in a copy of the tree: the working tree can be edited
# meanwhile. Ends with 1 when less than nine in ten are caught, or when a survivor is not in scripts/mutants.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VERSION=27.1.0

# The files that are broken, by package.
declare -A BROKEN=(
    [ginlab-rails]='host/rails/strategy.rs host/rails/lane.rs host/rails/stall.rs host/rails/ending.rs'
    [ginlab-proxy]='host/proxy/tracker.rs host/proxy/engine.rs host/proxy/engine/ending.rs host/proxy/engine/signalled.rs host/proxy/stage.rs
        host/proxy/signal_order.rs host/proxy/signal_order/credits.rs'
    [ginlab-flow]='host/flow/state.rs host/flow/state/posting.rs host/flow/state/ending.rs'
    [ginlab-bootstrap]='host/bootstrap/frame.rs host/bootstrap/handshake.rs host/bootstrap/seal.rs'
    [ginlab-fabric]='host/fabric/printed.rs host/fabric/wanted.rs host/fabric/select.rs host/fabric/libfabric/errors.rs host/fabric/libfabric/complete.rs
        host/fabric/worst/law.rs host/fabric/worst/claims.rs'
    [ginlab-gin]='host/gin/heap.rs host/gin/life.rs'
    [soft_efa]='crates/soft_efa/src/memory.rs crates/soft_efa/src/queue.rs crates/soft_efa/src/handles.rs crates/soft_efa/src/deliver.rs
        crates/soft_efa/src/flight.rs crates/soft_efa/src/late.rs'
    [experiments]='experiments/all2all/pairs.rs'
    [ginlab-topology]='host/topology/pci/printed.rs'
)
all=$(tr -s ' \n' ' ' <<<"${BROKEN[*]}")
PACKAGES=(ginlab-rails ginlab-proxy ginlab-flow ginlab-bootstrap ginlab-fabric ginlab-gin soft_efa ginlab-topology experiments)

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
sample=0
while (($#)); do
    case $1 in
    *.rs)
        if [[ " $all " != *" $1 "* ]]; then
            printf 'mutants.sh: %s is not among the files that it breaks: %s\n' "$1" "$all" >&2
            exit 2
        fi
        files+=("$1")
        ;;
    --sample)
        if [[ ! ${2:-} =~ ^[1-9][0-9]*$ ]]; then
            echo 'mutants.sh: --sample COUNT, from 1 on' >&2
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
# What people read in a debugger.
exclude_re = ["<impl (fmt::)?Debug for .*>::fmt"]
additional_cargo_args = ["--lib"]
profile = "mutants"
# It ends the other tests with the first one that fails: many mutants let some test wait for its bound.
test_tool = "nextest"
additional_cargo_test_args = ["--max-fail=1:immediate"]
# A test that finds nothing to wait for any more ends by its own bound; this is for those that have none.
minimum_test_timeout = 15.0
timeout_multiplier = 2.0
TOML

# So many of the mutants on stdin, as options that choose them; the same ones for the same seed and package.
draw() {
    python3 -c 'import random, re, sys
names = sorted(line.strip() for line in sys.stdin if line.strip())
for name in random.Random(f"{sys.argv[1]} {sys.argv[2]}").sample(names, min(int(sys.argv[3]), len(names))):
    print("--re", "^" + re.escape(name) + "$", sep="\n")' "${SEED:-1}" "$1" "$sample"
}

# Dependencies are compiled once for all packages.
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
        # By their whole names, which no other mutant has.
        mapfile -t drawn < <(cargo mutants --config "$out/mutants.toml" --package "$package" --list "${chosen[@]}" | draw "$package")
        if ((${#drawn[@]} == 0)); then
            printf 'mutants.sh: %s has no mutants to draw from\n' "$package" >&2
            exit 1
        fi
        chosen+=("${drawn[@]}")
    fi
    nice cargo mutants --config "$out/mutants.toml" --package "$package" --output "$out/$package" "${chosen[@]}" "${options[@]}" || code=$?
    # 2: some were missed, 3: some ran into the timeout. Anything else is no result.
    if ((code != 0 && code != 2 && code != 3)); then exit "$code"; fi
    folders+=("$out/$package/mutants.out")
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
