#!/usr/bin/env bash
# Runs every check and benchmark that needs a GPU: all tables scripts/tables/gpu-*.toml, with correctness of the real PTX, faults and measurements.
#
#   scripts/gpu-check.sh [DIR] [OPTIONS]     DIR: new directory for results [default: data/HOSTNAME/DATE]
#
# OPTIONS go to scripts/matrix.py: `--only gpu-ipc` selects a table, `--seconds 300` limits each one, `--quick` tests the tables. GINLAB is the program
# [default: target/release/ginlab]. Uses one GPU, which several ranks share, and all GPUs where a table compares GPUs; does not change their settings.
# All tables take about 90 minutes. Results are packed by scripts/pack-results.py for data/; a README.md must be added. One table without packing:
# `scripts/matrix.py gpu-moe --out DIR`. Exit codes: 0 ok, 1 a row failed, 2 usage.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit
fi
out=data/$(hostname)/$(date -u +%F)
if (($#)) && [[ $1 != -* ]]; then out=$1 && shift; fi
if [[ -e $out/headers.json ]]; then
    echo "gpu-check.sh: $out has results of an earlier run; choose another directory" >&2
    exit 2
fi
work=$(mktemp -d)
# Keeps the results so far, however the script exits.
# shellcheck disable=SC2317  # the trap calls it
pack() { if scripts/pack-results.py "$work" "$out"; then rm -rf "$work"; else echo "gpu-check.sh: not packed: $work" >&2; fi; }
trap pack EXIT
nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,pcie.link.width.current,clocks.sm,clocks.mem --format=csv 2>&1 | tee "$work/machine.txt"
scripts/matrix.py scripts/tables/gpu-*.toml --out "$work" "$@"
