#!/usr/bin/env bash
# Runs tests/fuzz in a release build, one parser after another, and prints one line per parser.
#
#   scripts/fuzz.sh DIR [PART...]     writes DIR/fuzz.csv; PART: part of a parser's name [default: all parsers]
#
#   INPUTS        corrupted inputs per parser   [default: 10000000]
#   SEED          seed                          [default: 1]
#   THREADS       threads                       [default: 1]
#   SECONDS_EACH  limit per parser              [default: 3600]
#
# Exit codes: 0 ok, 1 a parser panicked, used too much memory, or exceeded its limit (its log in DIR has the input), 2
# usage.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if (($# == 0)) || [[ $1 == -* ]]; then
    echo 'usage: fuzz.sh DIR [PART...], e.g. fuzz.sh target/fuzz handshake' >&2
    exit 2
fi
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
choose_kernel_compiler any
mkdir -p "$1"
out=$(realpath "$1")
shift
# Check arithmetic in the parsers: an overflow is a panic.
export CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true
program=$(cargo test --release "${kernel_features[@]}" --test fuzz --no-run --message-format=json 2>"$out/build.log" |
    sed -n 's/.*"executable":"\([^"]*fuzz-[0-9a-f]*\)".*/\1/p' | tail -n 1) || { tail "$out/build.log" >&2; exit 1; }
mapfile -t parts < <(if (($#)); then printf '%s\n' "$@"; else sed -n 's/^        name: "\(.*\)",$/\1/p' tests/fuzz/parsers.rs; fi)
failed=0
[[ -f $out/fuzz.csv ]] || echo 'parser,inputs,taken,core_seconds,seed' >"$out/fuzz.csv"
for part in "${parts[@]}"; do
    code=0
    GINLAB_FUZZ_ONLY=$part GINLAB_FUZZ_INPUTS=${INPUTS:-10000000} GINLAB_FUZZ_SEED=${SEED:-1} GINLAB_FUZZ_THREADS=${THREADS:-1} \
        timeout "${SECONDS_EACH:-3600}" nice -n 19 "$program" --ignored --nocapture >"$out/run.log" 2>&1 || code=$?
    sed -n 's/^\(.*\): \([0-9]*\) inputs, \([0-9]*\) of them taken, \([0-9.]*\) s of one core$/"\1",\2,\3,\4/p' "$out/run.log" |
        sed "s/\$/,${SEED:-1}/" | tee -a "$out/fuzz.csv"
    if ((code)); then
        printf 'fuzz.sh: %s: exit code %d (124: time limit); see %s\n' "$part" "$code" "$out/failed-${part//[^a-zA-Z0-9]/-}.log" >&2
        mv "$out/run.log" "$out/failed-${part//[^a-zA-Z0-9]/-}.log"
        failed=1
    fi
done
exit "$failed"
