#!/usr/bin/env bash
# Runs all measurements of docs/two-p5.md on the given hosts, from a host that reaches them by ssh, and makes the report:
# doctor on each host, doctor between them, each rail, puts of whole nodes from GPU memory and from pinned host memory.
#
#   deploy/run-all.sh HOST HOST...
#   INSTANCE=p5en.48xlarge RAILS=2 deploy/run-all.sh 10.0.0.7 10.0.0.8
#
#   INSTANCE   instance type                           [default: that of the hosts' firmware]
#   GPUS       ranks per host, one per GPU             [default: 8]
#   RAILS      rails per rank: EFA devices per GPU     [default: 4]
#   PROVIDER, DEVICE   fabric and device               [default: efa, gpu]
#   WRITE      options of the rails' measurement       [default: --at-least 85%]
#   PROXY      options of the puts                     [default: -b 64K -e 64M -f 4]
#   DIR        directory with deploy/ on the hosts     [default: that of this script]
#   GINLAB     program on the hosts                    [default: ginlab in DIR, otherwise that of PATH]
#   OUT        directory for results, on this host     [default: ginlab-results]
#   RSH        remote shell, called as RSH HOST LINE   [default: ssh -o BatchMode=yes]
#   MASTER_ADDR  address of the first host for the others   [default: the first HOST]
#
# The last lines are the verdict, also in OUT/verdict.txt. OUT/rails-HOST.txt has the table of the rails. Exit codes: 0
# as expected, 1 a run failed, 2 usage, 3 a host is not ready or a rail is too slow. Run so far:
# tests/command/run_all.rs (two network namespaces, shaped rails). Not run: ssh, EFA, GPUs.
set -euo pipefail
if (($# < 2)); then
    echo 'run-all.sh: expected at least two hosts: run-all.sh HOST HOST...' >&2
    exit 2
fi
hosts=("$@")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
provider=${PROVIDER:-efa} device=${DEVICE:-gpu} gpus=${GPUS:-8} rails=${RAILS:-4} dir=${DIR:-$here}
write=${WRITE:---at-least 85%} proxy=${PROXY:--b 64K -e 64M -f 4} out=${OUT:-ginlab-results}
read -ra rsh <<<"${RSH:-ssh -o BatchMode=yes}"
token=${GINLAB_TOKEN:-$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')}
mkdir -p "$out"

# A line for a host's shell that defines `ginlab` and enters DIR. EFA only: no fallback to sockets.
quoted() { printf '%q ' "$@"; }
program=${GINLAB:-}
setup="cd $(quoted "$dir"); g=$(quoted "$program"); [ -n \"\$g\" ] || { g=\$PWD/ginlab; [ -x \"\$g\" ] || g=ginlab; }"
if [[ $provider == efa ]]; then setup+="; export FI_PROVIDER=efa"; fi

problems=()
failed=no
# Records the result of a step from its exit code.
judge() { # CODE WHAT
    case $1 in
    0) ;;
    3) problems+=("$2: not as expected") ;;
    *)
        problems+=("$2: ended with exit code $1")
        failed=yes
        ;;
    esac
}
# Runs a subcommand with one rank per GPU on all hosts. Rank 0's files become OUT/FILE.*, and the output of each host
# OUT/FILE-HOST.txt.
everywhere() { # FILE SUBCOMMAND OPTIONS...
    local file=$1 node pids=() code=0 one line
    shift
    printf '== ginlab %s\n' "$*"
    for ((node = ${#hosts[@]} - 1; node >= 0; node--)); do
        line="$setup; d=\$(mktemp -d); export GINLAB_TOKEN=$token RANKS_PER_NODE=$gpus NODE=$node NODES=${#hosts[@]}"
        line+=" MASTER_ADDR=$(quoted "${MASTER_ADDR:-${hosts[0]}}"); c=0; deploy/ranks.sh \"\$g\" $(quoted "$@")"
        line+="--bootstrap tcp -p $(quoted "$provider")-d $(quoted "$device")--csv \"\$d/$file.csv\" --json \"\$d/$file.json\" >&2 || c=\$?"
        # Only rank 0, on the first host, writes files. They arrive here through the remote shell.
        line+="; tar -C \"\$d\" -cf - .; rm -r \"\$d\"; exit \$c"
        "${rsh[@]}" "${hosts[node]}" "$line" 2>"$out/$file-${hosts[node]}.txt" >"$out/$file-$node.tar" &
        pids[node]=$!
    done
    for node in "${!pids[@]}"; do
        one=0
        wait "${pids[node]}" || one=$?
        # A rank that fails stops the others with code 1: another code names the cause.
        if ((code == 0 || code == 1)) && ((one != 0)); then code=$one; fi
        tar -C "$out" -xf "$out/$file-$node.tar" || true
        rm -f "$out/$file-$node.tar"
    done
    # The header is in the document.
    for node in "${!hosts[@]}"; do
        grep -v '^# [a-z_]*: ' "$out/$file-${hosts[node]}.txt" | sed "s/^/${hosts[node]}: /" || true
    done
    judge "$code" "$file"
}

# Each host runs separately, all at the same time.
printf '== ginlab doctor on each host\n'
doctor=(doctor -p "$provider" -d "$device")
if [[ $provider == efa ]]; then doctor+=(--require-efa --wait 60); fi
if [[ -n ${INSTANCE:-} ]]; then doctor+=(--instance "$INSTANCE"); fi
pids=()
for host in "${hosts[@]}"; do
    "${rsh[@]}" "$host" "$setup; exec \"\$g\" $(quoted "${doctor[@]}") --no-header" >"$out/doctor-$host.txt" 2>&1 &
    pids+=("$!")
done
for index in "${!hosts[@]}"; do
    code=0
    wait "${pids[index]}" || code=$?
    grep -E '^(warn|fail) |^ginlab: ' "$out/doctor-${hosts[index]}.txt" | sed "s/^/${hosts[index]}: /" || true
    judge "$code" "doctor on ${hosts[index]}"
done

read -ra write <<<"$write"
read -ra proxy <<<"$proxy"
everywhere peers doctor --peers --rails "$rails" --only network,launch
everywhere rails write --each-rail --rails "$rails" "${write[@]}"
everywhere node proxy --per-node --memory device --rails "$rails" "${proxy[@]}"
everywhere node-pinned proxy --per-node --memory pinned --rails "$rails" "${proxy[@]}"

# The report is made here if the program is here too: the archive is the same on all hosts.
for ginlab in "$program" "$here/ginlab" "$(command -v ginlab || true)"; do
    if [[ -n $ginlab && -x $ginlab ]]; then
        "$ginlab" report "$out" -o "$out/report.html" ${INSTANCE:+--instance "$INSTANCE"} && printf '== report: %s\n' "$out/report.html"
        break
    fi
done

if ((${#problems[@]} == 0)); then
    printf 'verdict: %s hosts and their rails are as expected\n' "${#hosts[@]}" | tee "$out/verdict.txt"
    exit 0
fi
printf 'verdict: %s\n' "${problems[@]}" | tee "$out/verdict.txt"
if [[ $failed == yes ]]; then exit 1; fi
exit 3
