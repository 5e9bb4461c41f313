#!/usr/bin/env bash
# Runs the same sweep without and with EFA, and compares the rows in one table with a ratio column.
#
#   experiments/efa-or-not/run.sh [DIR]     DIR: directory for results [default: OUT, or target/efa-or-not]
#
#   GINLAB       program                        [default: target/release/ginlab]
#   EXPERIMENT   subcommand                     [default: write]
#   SWEEP        its options                    [default: -b 512 -e 64M -f 2]
#   EFA, NONE    provider and rails with/without EFA   [default: efa --rails 4, tcp --rails 1]
#
# Under a launcher (srun, mpirun, deploy/ranks.sh) each rank runs this command; otherwise it starts two ranks here. Rank
# 0 prints. More rails than NICs are rejected. Exit codes: those of ginlab.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
ginlab=${GINLAB:-target/release/ginlab}
out=${1:-${OUT:-target/efa-or-not}}
read -ra with <<<"${EFA:-efa --rails 4}"
read -ra without <<<"${NONE:-tcp --rails 1}"
read -ra sweep <<<"${SWEEP:--b 512 -e 64M -f 2}"
experiment=${EXPERIMENT:-write}
mkdir -p "$out"
"$ginlab" "$experiment" -p "${without[@]}" "${sweep[@]}" --no-header --csv "$out/without.csv" >&2
"$ginlab" "$experiment" -p "${with[@]}" "${sweep[@]}" --no-header --csv "$out/with.csv" >&2
if [[ ${RANK:-${OMPI_COMM_WORLD_RANK:-${SLURM_PROCID:-0}}} == 0 ]]; then
    # Columns that differ by design: the fabric and its rails.
    "$ginlab" compare "$out/without.csv" "$out/with.csv" --ignore fabric,rails,strategy
fi
