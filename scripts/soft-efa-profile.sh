#!/usr/bin/env bash
# Compares software NICs by profile with a real one, and measures the cost of a post (docs/soft-efa.md).
#
#   scripts/soft-efa-profile.sh GINLAB POST_COST DIR     POST_COST: target/release/examples/post_cost
#
#   ONLY  posts: only times and instructions of posts
#
# Writes rows, the table by size (profile-by-size.txt) and the instructions of a post (instructions.txt, with valgrind)
# to DIR. In addition to this machine's libfabric 1.x it uses Debian 13's in both fabrics, and for posts 2.5 and verbs,
# if scripts/check-libfabric2.sh and check-rdma-core65.sh have unpacked them. Needs an idle machine; the minimum of the
# repeats counts. Takes about four minutes on two cores.
#
# Exit codes: 0 if p5 is within 15 % of fi_rma_bw of a real p5.48xlarge (tests/fixtures/p5/fi_rma_bw.txt) for each size
# from 64 KiB, with one rail and four, over both fabrics of 2.1; 1 otherwise; 2 usage. 1.17 has no RDMA write, so its
# times are CPU time; they are printed and not checked.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
if [[ $# -ne 3 || ! -x $1 || ! -x $2 ]]; then
    echo 'usage: scripts/soft-efa-profile.sh GINLAB POST_COST DIR' >&2
    exit 2
fi
ginlab=$(realpath "$1")
post_cost=$(realpath "$2")
mkdir -p "$3" || exit 2
out=$(realpath "$3")
log=$out/log.txt
: >"$log"
for name in RANK WORLD_SIZE MASTER_ADDR MASTER_PORT; do unset "$name"; done
export GINLAB_TOKEN=profile
arch=$(uname -m)
folder=$PWD/${CARGO_TARGET_DIR:-target}/libfabric2/usr/lib/$arch-linux-gnu
direct=efa-direct:rdmap79s0-rdm,efa-direct:rdmap80s0-rdm,efa-direct:rdmap81s0-rdm,efa-direct:rdmap82s0-rdm
port=$((20000 + $$ % 20000))
failures=0
# Higher priority, if permitted.
first=()
if nice -n -5 true 2>/dev/null; then first=(nice -n -5); fi

# Selects the libfabric of the following programs: this machine's, or with 2 the other one with its own loader.
libfabric() {
    loader=()
    unset GINLAB_LIBFABRIC
    if [[ $1 == 2 ]]; then
        export GINLAB_LIBFABRIC=$folder/libfabric.so.1
        loader=("$folder/ld-linux-${arch/_/-}.so.2" --library-path "$folder:/usr/lib/$arch-linux-gnu")
    fi
}

ended() { # NAME CODE
    if (($2)); then
        printf '%s failed with exit code %d: %s\n' "$1" "$2" "$(tail -n 1 "$log")" >&2
        failures=$((failures + 1))
    fi
}

# Runs two ranks of `ginlab write`; the rows go to NAME.csv.
rows() { # NAME ARGS...
    local name=$1 code other
    [[ ${ONLY:-} != posts ]] || return 0
    shift
    port=$((port + 1))
    printf '== %s: ginlab write %s\n' "$name" "$*" | tee -a "$log"
    local line=("${first[@]}" "${loader[@]}" "$ginlab" write -d emulated --strategy round-robin --volume 2G --no-header "$@")
    RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout -k 2 150 "${line[@]}" >/dev/null 2>>"$log" &
    other=$!
    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port timeout -k 2 150 "${line[@]}" \
        --csv "$out/$name.csv" --json "$out/$name.json" >>"$log" 2>&1
    code=$?
    wait "$other" || code=$((code ? code : 1))
    ended "$name" "$code"
}

# Measures the cost of a post in one fabric.
posts() { # NAME [DOMAINS]
    local name=$1
    # The first domain of the list.
    local one=${2:-}
    local cost=("$post_cost" ${one:+"${one%%,*}"})
    printf '== post-%s: post_cost\n' "$name" | tee -a "$log"
    if [[ $name == verbs ]]; then cost=("$post_cost" --verbs); fi
    timeout -k 2 60 "${first[@]}" "${loader[@]}" "${cost[@]}" --csv "$out/post-$name.csv" >>"$log" 2>&1
    ended "post-$name" $?
    if command -v valgrind callgrind_annotate >/dev/null; then
        for chain in 1 16; do instructions "$name" "$chain" "${cost[@]}"; done
    fi
}

# Counts instructions per post, by library. The first window is not counted, because it includes the handshake.
instructions() { # FABRIC CHAIN COMMAND...
    local name=$1 chain=$2 windows=10
    shift 2
    timeout -k 2 100 valgrind --tool=callgrind --toggle-collect='post_window*' --callgrind-out-file="$out/callgrind.out" \
        "${loader[@]}" "$@" --chain "$chain" --windows "$windows" >>"$log" 2>&1
    ended "instructions of $name" $?
    callgrind_annotate --auto=no --threshold=100 "$out/callgrind.out" 2>>"$log" | awk -v name="$name" -v chain="$chain" -v posts=$((windows * 64)) '
        # 1,234 (5.6%)  file:function [object]
        # The software NIC is a file without a name; functions without an object belong to the program.
        $1 ~ /^[0-9,]+$/ && !/PROGRAM TOTALS/ {
            count = $1; gsub(/,/, "", count)
            object = match($0, /\[[^]]*\]$/) ? substr($0, RSTART + 1, RLENGTH - 2) : "program"
            sub(/.*\//, "", object)
            which = object ~ /^(libfabric[.]so|libefa-fi[.])/ ? 1 : object == "???" ? 2 : object ~ /^(libc[.]|ld-linux|libpthread|libm[.])/ ? 3 : 4
            sum[which] += count; all += count
        }
        END { printf "%-16s %8d %10d %10d %10d %10d %10d\n", name, chain, sum[1] / posts, sum[2] / posts, sum[3] / posts, sum[4] / posts, all / posts }
    ' >>"$out/instructions.txt"
    rm -f "$out/callgrind.out"
}
printf '%-16s %8s %10s %10s %10s %10s %10s\n' fabric chain libfabric card 'C library' ginlab 'in all' >"$out/instructions.txt"

p5=(-p 'soft-efa:p5,unmoved' --window 64 --rails '1,4' --no-check)
libfabric 1
posts 1.17-efa
# Without libfabric; the software NIC is a separate thread.
posts verbs
rows p5-1.17-efa "${p5[@]}" -b 64 -e 4M -f 16 -n 64 -r 5
rows p4d-1.17-efa -p soft-efa:p4d -b 4K -e 1M -f 16 -n 64 -r 5 --window 64 --rails 1,4
names=()
if [[ -x $folder/../../bin/fi_pingpong ]]; then
    libfabric 2
    posts 2.1-efa
    posts 2.1-efa-direct "$direct"
    names+=(2.1-efa 2.1-efa-direct)
    rows p5-2.1-efa "${p5[@]}" -b 64K -e 8M -f 2 -n 150 -r 60
    rows p5-2.1-efa-direct "${p5[@]}" -b 64K -e 8M -f 2 -n 150 -r 60 --domain "$direct"
    rows p5-2.1-moved -p soft-efa:p5 -b 64K -e 8M -f 2 -n 100 -r 5 --window 64 --rails 1 --domain "${direct%%,*}"
    rows p4d-2.1-efa -p soft-efa:p4d -b 4K -e 1M -f 16 -n 64 -r 5 --window 64 --rails 1,4
    for profile in p5en p6-b200; do
        rows "$profile-2.1-efa-direct" -p "soft-efa:$profile,unmoved" -b 64 -e 16M -f 4 -n 300 -r 15 --window 64 --rails 1,4 --no-check \
            --domain "$direct"
    done
fi

three=$PWD/${CARGO_TARGET_DIR:-target}/libfabric25
if [[ -r $three/libfabric.so.1 ]]; then
    libfabric 1
    export GINLAB_LIBFABRIC=$three/libfabric.so.1 FI_PROVIDER_PATH=$three/libfabric
    posts 2.5-efa
fi
if [[ ${ONLY:-} == posts ]]; then
    cat "$out/instructions.txt"
    exit $((failures > 0))
fi

{
    printf 'Gb/s per card, and ratio to fi_rma_bw of a real p5.48xlarge; times are the minimum of the repeats.\n'
    for name in "${names[@]}"; do
        awk -v name="$name" '
            function bytes(size) { return size ~ /k$/ ? size * 1024 : size ~ /m$/ ? size * 1048576 : size + 0 }
            FILENAME ~ /fi_rma_bw/ { if (FNR > 1) card[bytes($1)] = $5 / 1000; next }
            { split($0, field, ",") }
            FNR == 1 { for (i in field) column[field[i]] = i; next }
            {
                size = field[column["size_bytes"]]; rails = field[column["rails"]]
                each = size / field[column["time_us_min"]] / 1000 / rails
                if (!(size in card)) next
                ratio = each / card[size]
                if (!rows++) printf "\n%-15s %8s %6s %9s %9s %6s\n", name, "bytes", "rails", "ours", "real", "ratio"
                wide = ratio < 0.85 || ratio > 1.15
                printf "%-15s %8d %6d %9.3f %9.3f %6.3f%s\n", "", size, rails, each * 8, card[size] * 8, ratio, wide ? "  beyond 15 %" : ""
                if (size >= 65536) { asked++; beyond += wide }
            }
            END { printf "%s: %d rows from 64 KiB on, %d beyond 15 %%\n", name, asked, beyond; exit !(asked == 16 && !beyond) }
        ' tests/fixtures/p5/fi_rma_bw.txt "$out/p5-$name.csv" || echo beyond >>"$out/beyond"
    done
} >"$out/profile-by-size.txt"
cat "$out/profile-by-size.txt" "$out/instructions.txt"
if [[ -e $out/beyond ]]; then failures=$((failures + $(wc -l <"$out/beyond"))) && rm "$out/beyond"; fi
exit $((failures > 0))
