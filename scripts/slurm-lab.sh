#!/usr/bin/env bash
# deploy/slurm/ginlab.sbatch as it stands, by a real Slurm: slurmctld and two slurmd in the two nodes of scripts/rails-lab.sh, four shaped
# rails between them. The same lines by mpirun before it and behind it, and the rates beside each other: what the two runs of mpirun
# differ by is what the lab itself does. At the end a job of which one rank fails, which must end at once.
#
#   scripts/slurm-lab.sh [FOLDER]      results and transcript go to FOLDER [default: target/slurm-lab]
#   RATE=200mbit TASKS=1 GINLAB=target/release/ginlab (built with --features mpi)
#   PAGE=FILE                          run these commands in place of all that, in this folder on the first node, with the variables given
#
# Needs root, Debian's slurm-wlm and munge, and Open MPI. Everything it makes is removed: namespaces, daemons, a folder below /tmp.
# Exit codes: 0 ok, 1 failed, 77 skipped, with its reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-target/slurm-lab} rate=${RATE:-200mbit} tasks=${TASKS:-1}
ginlab=$(realpath "${GINLAB:-target/release/ginlab}")
skip() { printf 'slurm-lab.sh: skipped: %s\n' "$1" >&2; exit 77; }
fail() { printf 'slurm-lab.sh: %s\n' "$1" >&2; exit 1; }
[[ $(id -u) == 0 ]] || skip 'network namespaces need root'
for tool in slurmctld slurmd munged sbatch srun mpirun ip; do
    command -v "$tool" >/dev/null || skip "no $tool here: apt-get install slurm-wlm munge openmpi-bin iproute2"
done
[[ -n ${PAGE:-} ]] || grep -q "^MPI  *[^n]" <<<"$("$ginlab" --version)" || skip "$ginlab is built without MPI: make build FEATURES=mpi"
mkdir -p "$out"
out=$(realpath "$out")
page=${PAGE:-} caller=$OLDPWD root=$PWD

work=$(mktemp -d /tmp/ginlab-slurm.XXXXXX)
name=slurm-$$ prefix=ginlab-lab-slurm-$$
pids=()
cleanup() {
    # Clients first: slurmd ends its steps when it goes.
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do kill "${pids[i]}" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do
        for ((wait = 0; wait < 100; wait++)); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -9 "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
    # The commands of a PAGE run in the caller's folder.
    "$root/scripts/rails-lab.sh" down --name "$name" || fail "the lab $name stays"
}
trap cleanup EXIT
# A queue that drops nothing: rounds in which TCP repairs a loss are longer, and there are such rounds by chance.
scripts/rails-lab.sh up --name "$name" --rate "$rate" --queue 400 || skip 'no lab of rails can be made here'

# Each node has a name of its own, and finds the others' names.
printf '127.0.0.1 localhost\n10.99.0.1 lab0\n10.99.0.2 lab1\n' >"$work/hosts"
cat >"$work/enter" <<'INNER'
#!/bin/bash
# enter NODE COMMAND...: in the node's network, under the node's name.
node=$1
shift
exec ip netns exec "$LAB_PREFIX-$node" unshare --uts --mount bash -c \
    'hostname "$0"; mount --bind "$LAB_WORK/hosts" /etc/hosts; exec "$@"' "lab$node" "$@"
INNER
cat >"$work/rsh" <<'INNER'
#!/bin/bash
# What mpirun starts its daemon by: HOST COMMAND...
host=$1
shift
exec "$LAB_WORK/enter" "${host#lab}" bash -c "$*"
INNER
chmod +x "$work/enter" "$work/rsh"
export LAB_PREFIX=$prefix LAB_WORK=$work SLURM_CONF=$work/slurm.conf
mkdir -p "$work/state" "$work/spool/lab0" "$work/spool/lab1" "$work/tmp/lab0" "$work/tmp/lab1"
head -c 1024 /dev/urandom >"$work/munge.key"
chmod 600 "$work/munge.key"
cat >"$work/slurm.conf" <<CONF
ClusterName=lab
SlurmctldHost=lab0(10.99.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge.socket
CredType=cred/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool/%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd-%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
TmpFS=$work/tmp/%n
MpiDefault=none
GresTypes=gpu
NodeName=lab0 NodeAddr=10.99.0.1 CPUs=8 Gres=gpu:8 State=UNKNOWN
NodeName=lab1 NodeAddr=10.99.0.2 CPUs=8 Gres=gpu:8 State=UNKNOWN
PartitionName=lab Nodes=lab0,lab1 Default=YES MaxTime=INFINITE State=UP
CONF
# GPUs as ParallelCluster declares them, with /dev/null in the place of each: a job asks for them, and nothing constrains it.
for index in {0..7}; do mknod "$work/gpu$index" c 1 3; done
printf 'Name=gpu File=%s/gpu[0-7]\n' "$work" >"$work/gres.conf"
# No control groups: a node's /sys has none, and nothing here asks for any.
printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' >"$work/cgroup.conf"

munged --foreground --force --key-file="$work/munge.key" --socket="$work/munge.socket" --pid-file="$work/munge.pid" \
    --log-file="$work/munge.log" --seed-file="$work/munge.seed" --num-threads=2 >"$work/munge.out" 2>&1 &
pids+=("$!")
until_there() { # WHAT COMMAND...
    local what=$1 tries
    shift
    for ((tries = 0; tries < 300; tries++)); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    tail -n 20 "$work"/*.log >&2 || true
    fail "waited 30 s for $what"
}
until_there 'munged' test -S "$work/munge.socket"
"$work/enter" 0 slurmctld -D -f "$work/slurm.conf" >"$work/slurmctld.out" 2>&1 &
pids+=("$!")
for node in 0 1; do
    "$work/enter" "$node" slurmd -D -f "$work/slurm.conf" -N "lab$node" >"$work/slurmd-$node.out" 2>&1 &
    pids+=("$!")
done
both_idle() { [[ $("$work/enter" 0 sinfo -h -N -o %T | grep -c '^idle$') == 2 ]]; }
until_there 'two idle nodes' both_idle

if [[ -n $page ]]; then
    # Not the checkout: what a job writes beside its submission stays with the caller.
    cd "$caller"
    export GINLAB=$ginlab
    timeout 400 "$work/enter" 0 bash -euo pipefail "$page" || { code=$?; tail -n 20 "$work"/*.log >&2; fail "$page ended with exit code $code"; }
    exit
fi

kinds=$("$work/enter" 0 srun --mpi=list 2>&1)
if grep -q pmix <<<"$kinds"; then mpi=pmix bootstrap=mpi; else mpi=none bootstrap=tcp; fi
export GINLAB=$ginlab PROVIDER=tcp DEVICE=emulated RAILS=4 MPI=$mpi BOOTSTRAP=$bootstrap MASTER_ADDR=10.99.0.1
export PROXY="${PROXY:--b 1M -e 4M -f 4 -n 16 -r 5 --mode nbi --strategy split}" ALL2ALL="${ALL2ALL:--b 256K -e 1M -f 4 -n 20 --strategy split}"
read -ra proxy <<<"$PROXY"
read -ra all2all <<<"$ALL2ALL"
{
    printf '$ slurmctld -V; sinfo -N -l; srun --mpi=list\n'
    slurmctld -V
    "$work/enter" 0 sinfo -N -l
    printf '%s\n' "$kinds"
    printf '$ sbatch --wait --ntasks-per-node=%s deploy/slurm/ginlab.sbatch   (PROVIDER=tcp DEVICE=emulated RAILS=4 MPI=%s BOOTSTRAP=%s)\n' "$tasks" "$mpi" "$bootstrap"
} | tee "$out/transcript.txt"
# The same lines by mpirun in the same lab.
by_mpirun() { # FOLDER NAME ARGUMENTS...
    local folder=$out/$1 name=$2
    shift 2
    mkdir -p "$folder"
    timeout 200 "$work/enter" 0 mpirun --allow-run-as-root --bind-to none --mca plm_rsh_agent "$work/rsh" --mca routed direct \
        --mca oob_tcp_if_include 10.99.0.0/24 --mca btl_tcp_if_include 10.99.0.0/24 \
        --host "lab0:$tasks,lab1:$tasks" -np "$((2 * tasks))" "$ginlab" "$name" "$@" --bootstrap mpi -p tcp -d emulated \
        --no-header --color never --csv "$folder/$name.csv" --json "$folder/$name.json"
}
both_by_mpirun() { # FOLDER
    printf '== the same by mpirun: %s\n' "$1"
    by_mpirun "$1" proxy --rails 1,4 "${proxy[@]}"
    by_mpirun "$1" all2all --rails 1,4 "${all2all[@]}"
}
both_by_mpirun mpirun-before | tee -a "$out/transcript.txt"
code=0
OUT=$out/slurm timeout 400 "$work/enter" 0 sbatch --wait --chdir="$PWD" --ntasks-per-node="$tasks" --output="$work/job.out" \
    deploy/slurm/ginlab.sbatch 2>&1 | tee -a "$out/transcript.txt" || code=$?
sed "s|$work|WORK|g" "$work/job.out" | tee -a "$out/transcript.txt"
((code == 0)) || { tail -n 20 "$work"/*.log >&2; fail "the job ended with exit code $code"; }

both_by_mpirun mpirun-behind | tee -a "$out/transcript.txt"
for name in proxy all2all; do
    for other in slurm/$name.csv mpirun-behind/$name.csv; do
        printf '$ ginlab compare mpirun-before/%s.csv %s\n' "$name" "$other"
        "$ginlab" compare "$out/mpirun-before/$name.csv" "$out/$other"
    done
done 2>&1 | tee -a "$out/transcript.txt"
{
    printf '$ tc -s qdisc   (what the rails dropped)\n'
    for node in 0 1; do tc -n "$prefix-$node" -s qdisc show | awk -v node="$node" '/^qdisc tbf/ {rail = $5} /dropped/ && rail {print "lab" node, rail, $0; rail = ""}'; done
} | tee -a "$out/transcript.txt"

# A rank that fails while the others wait for it: --kill-on-bad-exit ends them by a signal, and the job with the largest code.
cat >"$work/dies" <<'INNER'
#!/bin/bash
case $1 in
    proxy) if ((SLURM_PROCID == 1)); then exit 9; else exec tail -f /dev/null; fi ;;
esac
INNER
chmod +x "$work/dies"
code=0
GINLAB=$work/dies OUT=$work/died timeout 60 "$work/enter" 0 sbatch --wait --chdir="$PWD" --ntasks-per-node="$tasks" \
    --output="$work/died.out" deploy/slurm/ginlab.sbatch >/dev/null 2>&1 || code=$?
printf '$ sbatch --wait ... with a rank 1 that exits with 9: the job ends with %s\n' "$code" | tee -a "$out/transcript.txt"
((code == 9 || code == 143)) || fail "a rank that exits with 9 made the job end with $code (124: it waited for the others)"
printf 'slurm-lab.sh: transcript and results in %s\n' "$out"
