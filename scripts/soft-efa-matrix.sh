#!/usr/bin/env bash
# Runs ginlab over software NICs (docs/soft-efa.md), on one machine and between two nodes of a lab, with one rail and
# four, over each available libfabric and over verbs, with verification.
#
#   scripts/soft-efa-matrix.sh GINLAB DIR     DIR gets a line per run (matrix.txt) and the log
#
#   SHORT             1: a tenth of the rounds, few buffers, one rail on the machine and four between nodes
#   ONLY              one part, such as "2.5 efa-direct"
#   CARDS             profile of the NICs    [default: p5]
#   GINLAB_LIBFABRIC  libfabric to use       [default: this machine's]
#
# Also uses libfabric of Debian 13 with its own loader, and 2.5, if scripts/check-libfabric2.sh and check-rdma-core65.sh
# have unpacked them. 2.x has the fabrics efa and efa-direct; that the second rejects messages is a line, too. The lab
# needs root and iproute2. Takes about five minutes on two cores. Exit codes: 0 ok, 1 a run failed, 2 usage.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
if [[ $# -ne 2 || ! -x $1 ]]; then
    echo 'usage: scripts/soft-efa-matrix.sh GINLAB DIR, where GINLAB is the program (target/release/ginlab)' >&2
    exit 2
fi
ginlab=$(realpath "$1")
mkdir -p "$2" || exit 2
out=$(realpath "$2")
log=$out/log.txt
matrix=$out/matrix.txt
work=$(mktemp -d)
lab=matrix-$$
has_lab=
cards=soft-efa:${CARDS:-p5}
export FI_EFA_RX_SIZE=1024
# Rounds of writes and messages, rounds of other programs, repeats.
many=100 some=20 repeats=3 on_machine='1 4' in_lab='1 4'
if [[ ${SHORT:-0} == 1 ]]; then
    many=10 some=3 repeats=1 on_machine=1 in_lab=4
    export FI_EFA_RX_SIZE=64 FI_EFA_TX_SIZE=64
fi
# shellcheck disable=SC2317  # called by the trap
cleanup() {
    [[ -z $has_lab ]] || scripts/rails-lab.sh down --name "$lab" >>"$log" 2>&1
    rm -rf "$work"
}
trap cleanup EXIT
: >"$log"
for name in RANK WORLD_SIZE MASTER_ADDR MASTER_PORT GINLAB_TOKEN; do unset "$name"; done
export GINLAB_TOKEN=matrix
given=${GINLAB_LIBFABRIC:-}

two=$PWD/${CARGO_TARGET_DIR:-target}/libfabric2
arch=$(uname -m)
failures=0
port=$((20000 + $$ % 20000))

# line LIBFABRIC FABRIC PLACE RAILS PROGRAM RESULT SECONDS
line() { printf '%-9s %-10s %-8s %-5s %-22s %-44s %4s\n' "$@" | tee -a "$matrix"; }
: >"$matrix"
line libfabric fabric place rails program result s

# Options for the rails of a run: their number, and names for efa-direct, because a plain name selects the fabric efa.
rails() { # RAILS
    lanes=(--rails "$1")
    if [[ $fabric == efa-direct ]]; then
        local domains
        domains=$(printf 'efa-direct:rdmap%ds0-rdm,' $(seq 79 $((78 + $1))))
        lanes+=(--domain "${domains%,}")
    fi
}

# Summarizes the rows: their number and the number of wrong bytes.
verdict() { # CODE CSV
    awk -v code="$1" '
        { split($0, field, ",") }
        FNR == 1 { for (i in field) column[field[i]] = i; next }
        { rows++; wrong += field[column["wrong"]]; bad += field[column["status"]] != "ok" || field[column["wrong"]] == "" }
        END {
            if (code != 0) printf "FAILED with %d", code
            else if (!rows || bad || wrong) printf "FAILED: %d rows, %d not ok, %d wrong", rows, bad, wrong
            else printf "%d rows, 0 wrong", rows
        }' "$2" 2>/dev/null || printf 'FAILED with %d' "$1"
}

note() { # PLACE RAILS PROGRAM RESULT STARTED
    [[ $4 != FAILED* ]] || failures=$((failures + 1))
    line "$version" "$fabric" "$1" "$2" "$3" "$4" "$((SECONDS - $5))"
}

# Runs a program on this machine or on a node.
at() { # PLACE NODE COMMAND...
    local place=$1 node=$2 plain=(env -u RANK -u WORLD_SIZE -u MASTER_ADDR -u MASTER_PORT)
    shift 2
    [[ -z ${RANK:-} ]] || plain=()
    if [[ $place == lab ]]; then
        # exec sets the variables of a rank; other programs must not have them.
        scripts/rails-lab.sh exec --name "$lab" "$node" -- "${plain[@]}" "$@"
    else
        "$@"
    fi
}
rank() { # PLACE RANK COMMAND...
    local place=$1 rank=$2 address=127.0.0.1
    shift 2
    [[ $place != lab ]] || address=10.99.0.1
    RANK=$rank WORLD_SIZE=2 MASTER_ADDR=$address MASTER_PORT=$port at "$place" "$rank" timeout -k 2 60 "$@"
}

# Runs two ranks of an experiment; rank 0 writes the rows.
pair() { # PLACE RAILS NAME ARGS...
    local place=$1 rails=$2 name=$3 started=$SECONDS code other
    shift 3
    port=$((port + 1))
    rails "$rails"
    printf '\n## %s %s %s %s rail(s): %s\n' "$version" "$fabric" "$place" "$rails" "$*" >>"$log"
    rank "$place" 1 "${program[@]}" "$@" "${lanes[@]}" -p "$cards" -d emulated >>"$log" 2>&1 &
    other=$!
    rank "$place" 0 "${program[@]}" "$@" "${lanes[@]}" -p "$cards" -d emulated --csv "$work/rows.csv" >"$work/said" 2>&1
    code=$?
    wait "$other" || code=$((code ? code : 1))
    cat "$work/said" >>"$log"
    local result
    result=$(verdict "$code" "$work/rows.csv")
    if [[ $fabric == efa-direct && $name == sendrecv ]] && grep -q 'FI_ORDER_SAS, which efa-direct lacks' "$work/said"; then
        result='refused by name: it has no order'
    fi
    if [[ $fabric == verbs && $name == sendrecv ]] && grep -q 'datagrams are unordered, but messages need an order' "$work/said"; then
        result='refused by name: it has no order'
    fi
    note "$place" "$rails" "$name" "$result" "$started"
    rm -f "$work"/rows.*
}

serve() { # PLACE RAILS
    local place=$1 rails=$2 started=$SECONDS code address=127.0.0.1 server
    [[ $place != lab ]] || address=10.99.0.1
    port=$((port + 1))
    rails "$rails"
    at "$place" 0 timeout -k 2 60 "${program[@]}" serve --listen "$address:$port" -p "$cards" "${lanes[@]}" --peers 1 \
        --bytes 1M --visits 1 >>"$log" 2>&1 &
    server=$!
    at "$place" 1 timeout -k 2 60 "${program[@]}" join "$address:$port" -p "$cards" "${lanes[@]:2}" -b 65537 -n 100 --csv "$work/rows.csv" >>"$log" 2>&1
    code=$?
    wait "$server" || code=$((code ? code : 1))
    note "$place" "$rails" serve/join "$(verdict "$code" "$work/rows.csv")" "$started"
    rm -f "$work"/rows.*
}

# libfabric's own ping-pong, with verification. With 2.x it selects efa-direct, which is listed first, unless it needs
# tags.
ping_pong() { # PLACE
    local place=$1 started=$SECONDS code address=127.0.0.1 server messages=msg bytes=65536 attempt
    [[ $place != lab ]] || address=10.99.0.1
    if [[ $fabric == efa-direct ]]; then bytes=8192; elif [[ $version == 2.* ]]; then messages=tagged; fi
    port=$((port + 1))
    local line=("$ginlab" soft-efa -p "$cards,cards=1" -- "${tool[@]/%TOOL/fi_pingpong}" -p efa -e rdm -c -I 100 -S "$bytes" -m "$messages")
    at "$place" 0 timeout -k 2 30 "${line[@]}" -B "$port" >>"$log" 2>&1 &
    server=$!
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        at "$place" 1 timeout -k 2 30 "${line[@]}" -P "$port" "$address" >"$work/said" 2>&1
        code=$?
        # The server does not listen yet.
        [[ $code == 111 ]] || break
        sleep "0.$attempt"
    done
    cat "$work/said" >>"$log"
    wait "$server" || code=$((code ? code : 1))
    local result="FAILED with $code"
    if [[ $code == 0 ]] && grep -q '=100' "$work/said"; then result="100 of $bytes B each way, checked ($messages)"; fi
    note "$place" 1 fi_pingpong "$result" "$started"
}

all() { # PLACE
    local place=$1
    [[ $fabric == verbs ]] || lists "$place"
    programs "$place"
}

# Lists the NICs with libfabric's own programs, if available, and with ginlab.
lists() { # PLACE
    local place=$1 count started=$SECONDS
    at "$place" 0 timeout -k 2 30 "${program[@]}" efa -p "$cards" --csv "$work/cards.csv" >>"$log" 2>&1
    count=$(grep -c rdmap "$work/cards.csv" 2>/dev/null)
    note "$place" - 'ginlab efa' "$([[ ${count:-0} -ge 4 ]] && echo "$count entries" || echo FAILED: none)" "$started"
    rm -f "$work"/cards.*
    if [[ ${#tool[@]} == 0 ]]; then return; fi
    started=$SECONDS
    at "$place" 0 timeout -k 2 30 "$ginlab" soft-efa -p "$cards" -- "${tool[@]/%TOOL/fi_info}" -p efa -t FI_EP_RDM >"$work/said" 2>&1
    count=$(grep -c "fabric: $fabric\$" "$work/said")
    note "$place" - fi_info "$([[ $count == 4 ]] && echo '4 cards in this fabric' || echo "FAILED: $count")" "$started"
    ping_pong "$place"
}

programs() { # PLACE
    local place=$1 rails
    for rails in $([[ $place == lab ]] && echo "$in_lab" || echo "$on_machine"); do
        pair "$place" "$rails" write write -b 8 -e 1M -f 131 -n "$many" -r "$repeats"
        pair "$place" "$rails" sendrecv sendrecv -b 0 -e 9000 -f 90 -n "$many" -r "$repeats" --window 7
        pair "$place" "$rails" all2all all2all -b 8 -e 1M -f 131 -n "$((some / 2))"
        pair "$place" "$rails" proxy proxy -b 4K -e 1M -f 16 -n "$some" -r "$repeats" --mode quiet,nbi --check
        serve "$place" "$rails"
    done
    pair "$place" 1 'shmem, signal-order' shmem --cases signal-order --path rails -n "$((some * 10))" -r "$repeats" --grid 1 --block 33
}

# over VERSION FABRIC
over() {
    version=$1 fabric=$2
    [[ ${ONLY:-$1 $2} == "$1 $2" ]] || return 0
    all machine
    if [[ -n $has_lab ]]; then all lab; else line "$version" "$fabric" lab - all 'not run: no lab here' 0; fi
}

if scripts/rails-lab.sh up --name "$lab" --rails 1 --rate none >>"$log" 2>&1; then has_lab=yes; fi
program=("$ginlab")
tool=(TOOL)
own=$("$ginlab" --version | grep -Eo 'libfabric +[0-9]+\.[0-9]+' | head -n 1)
own=${own##* }
over "${own:-unknown}" efa
if [[ $own == 2.* ]]; then over "$own" efa-direct; fi
folder=$two/usr/lib/$arch-linux-gnu
if [[ $own == 1.* && -x $two/usr/bin/fi_pingpong ]]; then
    loader=("$folder/ld-linux-${arch/_/-}.so.2" --library-path "$folder:/usr/lib/$arch-linux-gnu")
    program=("${loader[@]}" "$ginlab")
    tool=("${loader[@]}" "$two/usr/bin/TOOL")
    export GINLAB_LIBFABRIC=$folder/libfabric.so.1
    over 2.1 efa
    over 2.1 efa-direct
fi
three=$PWD/${CARGO_TARGET_DIR:-target}/libfabric25
program=("$ginlab")
if [[ -r $three/libfabric.so.1 ]]; then
    # A wheel contains only the library. Its efa-direct needs a posted receive for each immediate.
    tool=()
    export GINLAB_LIBFABRIC=$three/libfabric.so.1 FI_PROVIDER_PATH=$three/libfabric
    over 2.5 efa
    over 2.5 efa-direct
    unset FI_PROVIDER_PATH
fi
# Verbs rails load no libfabric, but `join` requests one before it knows the server's rails.
if [[ -n $given ]]; then export GINLAB_LIBFABRIC=$given; else unset GINLAB_LIBFABRIC; fi
cards=efa-verbs/soft:${CARDS:-p5}
over none verbs
printf '%d runs failed\n' "$failures" | tee -a "$matrix"
exit $((failures > 0))
