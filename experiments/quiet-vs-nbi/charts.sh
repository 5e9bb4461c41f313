#!/usr/bin/env bash
# The pictures of experiments/quiet-vs-nbi, from a folder that run.sh has filled.
#   experiments/quiet-vs-nbi/charts.sh FOLDER [OUTPUT]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
ginlab=${GINLAB:-target/release/ginlab}
data=$1
out=${2:-experiments/quiet-vs-nbi}

"$ginlab" chart "$data/0-as-it-was-pinned.csv" "$data/0-as-it-was-managed.csv" "$data/3-four-buffers.csv" -x size_bytes -y baseline_ratio \
    --series file,rails --where case=put --log x --linear y \
    --title 'puts over CPU-initiated writes of the same size, modelled p5' -o "$out/ratio.svg"
"$ginlab" chart "$data"/{0-as-it-was-managed-8M,0-as-it-was-pinned-8M,0a-pinned-payload,1-block-1024}.life.csv -x rails,file -y mean_us \
    --series stage --where size_bytes=8388608 --stacked --height 620 \
    --title 'life of a put + quiet of 8 MiB, modelled p5: microseconds by stage' -o "$out/stages.svg"
