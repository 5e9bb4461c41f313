#!/usr/bin/env bash
# Compares modelled cards in real time with a real one: CPU-initiated writes over one card of model:p5, by size, and
# fi_rma_bw of a p5.48xlarge (tests/fixtures/p5/fi_rma_bw.txt).
#
#   scripts/model-check.sh GINLAB DIR     DIR gets the rows (model.csv), a log, and the table (model-by-size.txt)
#
# Needs idle cores: two for the proxies, one for the grid, three for copying. Takes less than 90 s. The fixture ends at
# 8 MiB; larger sizes are compared with the published 97.4 Gb/s of large writes on one card. Exit codes: 0 if each size
# is within 15 % of the card, 1 otherwise (rows marked as slower than the card are counted separately), 2 usage.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
if [[ $# -ne 2 || ! -x $1 ]]; then
    echo 'usage: scripts/model-check.sh GINLAB DIR, where GINLAB is the program (target/release/ginlab)' >&2
    exit 2
fi
ginlab=$1
out=$2
mkdir -p "$out" || exit 2
rm -f "$out/model.csv"

# One thread per block and no fill keep the cost of puts low; only the CPU-initiated writes are compared.
timeout 85 "$ginlab" proxy -p model:p5 -d emulated --rails 1 --block 1 --no-fill --mode nbi -b 64 -e 64M -f 2 -n 20000 --volume 1G \
    --window 4 -r 5 -t 20 --csv "$out/model.csv" >"$out/log.txt" 2>&1
code=$?
if [[ $code != 0 ]]; then
    echo "ginlab failed with exit code $code: $(tail -n 1 "$out/log.txt")" >&2
    [[ -s $out/model.csv ]] || exit 1
fi

awk '
    function bytes(size) { return size ~ /k$/ ? size * 1024 : size ~ /m$/ ? size * 1048576 : size + 0 }
    # The measured table, separated by blanks.
    FILENAME ~ /fi_rma_bw/ { if (FNR > 1) card[bytes($1)] = $5 / 1000; next }
    # The rows, separated by commas; the needed columns precede quoted text.
    { split($0, field, ",") }
    FNR == 1 { for (i in field) column[field[i]] = i; next }
    field[column["case"]] == "cpu-write" {
        size = field[column["size_bytes"]]
        model = field[column["bandwidth_gbytes_s"]]
        source = size in card ? "fi_rma_bw" : "97.4 Gb/s"
        there = size in card ? card[size] : 97.4 / 8
        ratio = model / there
        near = ratio >= 0.85 && ratio <= 1.15
        slower = /slower than the modelled card/
        if (!rows++) printf "%10s %12s %8s %12s %-10s %6s\n", "bytes", "model GB/s", "Mops", "card GB/s", "", "ratio"
        printf "%10d %12.4f %8.4f %12.4f %-10s %6.3f%s%s\n", size, model, field[column["rate_mops"]], there, source, ratio, \
            near ? "" : "  beyond 15 %", slower ? "  suspect" : ""
        within += near
        suspect += slower
        silent += !near && !slower
        if (field[column["wrong"]] != 0) wrong++
    }
    END {
        printf "%d sizes, %d within 15 %% of the card, %d marked as slower than it, %d beyond and not marked, %d wrong\n", \
            rows, within, suspect, silent, wrong
        exit !(rows == 21 && within == rows && !wrong)
    }' tests/fixtures/p5/fi_rma_bw.txt "$out/model.csv" | tee "$out/model-by-size.txt"
exit $((PIPESTATUS[0] != 0 || code != 0))
