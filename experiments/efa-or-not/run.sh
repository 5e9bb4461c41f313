#!/usr/bin/env bash
# The same sweep over EFA and without it, and one table with a ratio column.
#
#   experiments/efa-or-not/run.sh [FOLDER]      EFA="efa --rails 4" NONE="tcp --rails 1" EXPERIMENT=write SWEEP="-b 512 -e 64M -f 2"
#
# Under a launcher each rank runs this line (srun, mpirun, deploy/ranks.sh); alone it starts two ranks here. Rank 0 prints.
# More rails than cards are refused: four endpoints on one card would be called four rails.
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
    # What is chosen differently on the two sides: the fabric, and how many rails it has.
    "$ginlab" compare "$out/without.csv" "$out/with.csv" --ignore fabric,rails,strategy
fi
