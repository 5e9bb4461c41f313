#!/usr/bin/env bash
# Measures how an attacker on the rails slows ranks down: runs each program alternately without and with the attacker
# and compares the medians. (The tests of the attacker check that all data stays correct.)
#
#   scripts/hostile.sh DIR [PROGRAM...]     writes DIR/hostile.csv; PROGRAM: name in the table below [default: all]
#
#   TURNS     repetitions                     [default: 5]
#   REST      attacker's sleep after each round, in ms   [default: 20]
#   CORES     cores of the ranks              [default: all]
#   HIS       cores of the attacker           [default: all]
#   GINLAB    program                         [default: target/release/ginlab, built first]
#   STRANGER  test program of the attacker, target/release/deps/command-...   [default: built first]
#
# The attacker runs on this machine and uses its CPU time, which a remote attacker would not. Give both sides their own
# idle cores, otherwise the ratio depends mainly on the machine; rows contain the number of cores and the load. Exit
# codes: 0 ok, 1 a run failed, 2 usage.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if (($# == 0)) || [[ $1 == -* ]]; then
    echo 'usage: hostile.sh DIR [PROGRAM...], e.g. hostile.sh target/hostile write shmem' >&2
    exit 2
fi
# shellcheck source=scripts/toolchain.sh
source scripts/toolchain.sh
choose_kernel_compiler any
mkdir -p "$1"
out=$(realpath "$1")
shift
declare -A PROGRAMS=(
    [proxy-quiet]='proxy -d emulated --np 2 -b 64K -e 64K -n 2000 -r 9 --rails 1 --mode quiet'
    [proxy-nbi]='proxy -d emulated --np 2 -b 64K -e 64K -n 20000 -r 9 --rails 1 --mode nbi'
    [write]='write --np 2 -b 64K -e 64K -n 20000 -r 9 --volume 4G --rails 1'
    [sendrecv]='sendrecv --np 2 -b 4K -e 4K -n 20000 -r 9 --volume 4G --rails 1 --mode roundtrip'
    [all2all]='all2all --np 3 -b 64K -e 64K -n 5000 --rails 1'
    [shmem]='shmem -d emulated --np 2 --path rails --cases put-signal-ping-pong -b 4K -e 4K -n 2000 -r 9 --block 40'
    [collective]='collective -d emulated --np 2 --path rails --cases gin-all-reduce -b 64K -e 64K -n 200 -r 9'
    [jacobi]='jacobi -d emulated --np 2 --path rails --exchange row --nx 32 --ny 16 -n 200 -r 9 --no-check'
    [moe]='moe -d emulated --np 2 --path rails --tokens 8 --hidden 256 --experts 8 --topk 2 --unit rank --count signal -n 200 -r 9'
)
names=("$@")
((${#names[@]})) || mapfile -t names < <(printf '%s\n' "${!PROGRAMS[@]}" | sort)
for name in "${names[@]}"; do
    [[ -n ${PROGRAMS[$name]:-} ]] || { echo "hostile.sh: unknown program $name: expected one of ${!PROGRAMS[*]}" >&2; exit 2; }
done
ginlab=${GINLAB:-} stranger=${STRANGER:-}
if [[ -z $ginlab ]]; then
    cargo build --release "${kernel_features[@]}" 2>"$out/build.log" || { tail "$out/build.log" >&2; exit 1; }
    ginlab=target/release/ginlab
fi
if [[ -z $stranger ]]; then
    stranger=$(cargo test --release "${kernel_features[@]}" --test command --no-run --message-format=json 2>>"$out/build.log" |
        sed -n 's/.*"executable":"\([^"]*command-[0-9a-f]*\)".*/\1/p' | tail -n 1) || { tail "$out/build.log" >&2; exit 1; }
fi
library=$(find "$(dirname "$ginlab")" -maxdepth 2 -name libsoft_efa.so | head -n 1)
# Runs the attacker and prints its counts. No messages are sent, because programs that receive some would exit.
aim() {
    GINLAB_TEST_STRANGER="$1 $2 $3" GINLAB_TEST_STRANGER_RESTS=${REST:-20} taskset -c "${HIS:-0-$(($(nproc) - 1))}" \
        "${@:4}" "$stranger" --exact stranger::attacker_process --ignored --nocapture 2>&1 | sed -n 's/.*round=\([0-9]*\) .*posted=\([0-9]*\) refused=\([0-9]*\) reached=\([0-9]*\).*/\1,\2,\3,\4/p' | tail -n 1
}
# Prints time_us_p50 of the last row that is not a reference.
median() {
    python3 -c 'import csv, sys
rows = [row for row in csv.DictReader(open(sys.argv[1])) if row["case"] not in ("cpu-write", "bare-write", "ping-pong")]
assert rows and all(row["status"] == "ok" for row in rows), rows
print(rows[-1]["time_us_p50"])' "$1"
}
csv=$out/hostile.csv
[[ -f $csv ]] || echo 'program,fabric,turn,stranger,time_us_p50,rounds,posted,refused,reached,cores,load' >"$csv"
for name in "${names[@]}"; do
    for turn in $(seq "${TURNS:-5}"); do
        for fabric in tcp soft-efa; do
            provider=tcp his=tcp ways=garbage,replay,flood,keys,immediates cards=()
            if [[ $fabric == soft-efa ]]; then
                provider=soft-efa:fast,cards=1 his=efa-verbs/soft:fast,cards=1,host=2 ways=keys,immediates
                spec=$("$ginlab" soft-efa -p "$his" -- env | sed -n 's/^SOFT_EFA=//p')
                cards=(env "SOFT_EFA=$spec" "LD_PRELOAD=$(realpath "$library")" FI_EFA_ENABLE_SHM_TRANSFER=0)
            fi
            for with in no yes; do
                read -r load _ </proc/loadavg
                # shellcheck disable=SC2086 # words
                FI_EFA_RX_SIZE=1024 taskset -c "${CORES:-0-$(($(nproc) - 1))}" "$ginlab" ${PROGRAMS[$name]} -p "$provider" \
                    --csv "$out/row.csv" >"$out/run.log" 2>&1 &
                run=$! told=,,,
                # taskset execs the program, so that this is the pid of the run.
                [[ $with == no ]] || told=$(aim "$run" "$ways" "$his" "${cards[@]}")
                wait "$run" || { cat "$out/run.log" >&2; exit 1; }
                echo "$name,$fabric,$turn,$with,$(median "$out/row.csv"),${told:-,,,},$(nproc),$load" | tee -a "$csv"
            done
        done
    done
done
python3 - "$csv" <<'PY'
import csv, statistics, sys
times = {}
for row in csv.DictReader(open(sys.argv[1])):
    times.setdefault((row["program"], row["fabric"]), {"no": [], "yes": []})[row["stranger"]].append(float(row["time_us_p50"]))
for (program, fabric), of in sorted(times.items()):
    if not all(of.values()):
        continue
    alone, met = (statistics.median(of[which]) for which in ("no", "yes"))
    print(f"{program:<12} {fabric:<9} alone {alone:10.2f} us, with an attacker {met:10.2f} us: {100 * (met / alone - 1):+.1f} %")
PY
