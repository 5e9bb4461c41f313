#!/usr/bin/env bash
# Mutation tests: breaks the code in many small ways, one at a time, and lists what no test notices (scripts/mutants.md says
# why each of those may stay).
#
#   scripts/mutants.sh                        every file below: hours on two cores
#   scripts/mutants.sh --shard 0/8            an eighth of the mutants of every file
#   scripts/mutants.sh host/proxy/engine.rs   these files only
#   scripts/mutants.sh --iterate FILE         only what has not been caught by earlier runs into the same folder
#
# Other options go to `cargo mutants`. Results: target/mutants.out (MUTANTS_OUT names another folder for it). A mutant is built
# with the profile "mutants" and without PTX, and tested by the unit tests of its crate (.cargo/mutants.toml). The working tree
# is copied, so that it can be edited meanwhile.
# Ends with 1 when less than nine in ten are caught, or when a survivor is not in scripts/mutants.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VERSION=27.1.0
FILES=(
    host/proxy/strategy.rs host/proxy/tracker.rs host/proxy/engine.rs host/proxy/engine/ending.rs host/proxy/stage.rs
    host/flow/state.rs host/flow/state/posting.rs host/flow/state/ending.rs
    host/bootstrap/frame.rs host/bootstrap/hello.rs host/fabric/printed.rs host/fabric/pairs.rs
)

PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
if [[ $(cargo mutants --version 2>/dev/null) != "cargo-mutants $VERSION" ]]; then
    printf 'mutants.sh: installing cargo-mutants %s with cargo, once\n' "$VERSION" >&2
    cargo install --quiet --locked "cargo-mutants@$VERSION"
fi

options=()
files=()
while (($#)); do
    case $1 in
    *.rs) files+=("$1") ;;
    *) options+=("$1") ;;
    esac
    shift
done
if ((${#files[@]} == 0)); then files=("${FILES[@]}"); fi
examined=()
for file in "${files[@]}"; do
    if [[ ! -f $file ]]; then
        printf 'mutants.sh: there is no file %s; without files, all of these: %s\n' "$file" "${FILES[*]}" >&2
        exit 2
    fi
    examined+=(--file "$file")
done

out=${MUTANTS_OUT:-target}
mkdir -p "$out"
# One folder for all copies: dependencies are compiled once. It is not the everyday one, whose build would be thrown over.
export CARGO_TARGET_DIR=$PWD/target/mutants
code=0
nice -n 10 cargo mutants --workspace --output "$out" "${examined[@]}" "${options[@]}" || code=$?
if [[ " ${options[*]} " == *" --list "* ]]; then exit "$code"; fi
# 2: some were missed, 3: some ran into the timeout. Anything else is no result.
if ((code != 0 && code != 2 && code != 3)); then exit "$code"; fi

python3 - "$out/mutants.out" scripts/mutants.md <<'PY'
import collections
import json
import pathlib
import sys

folder, known = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).read_text()
counts = collections.defaultdict(collections.Counter)
unknown = []
for outcome in json.loads((folder / "outcomes.json").read_text())["outcomes"]:
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
