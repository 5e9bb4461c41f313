#!/usr/bin/env bash
# Runs the unchanged deploy/slurm/ginlab.sbatch under a real Slurm: slurmctld and two slurmd in the two nodes of
# scripts/rails-lab.sh, with four shaped rails. Then a job in which one rank fails, which must end immediately.
#
#   scripts/slurm-lab.sh [DIR]     DIR: for results and transcript [default: target/slurm-lab]
#
#   GINLAB  program, built with --features mpi   [default: target/release/ginlab]
#   RATE    rate of a rail                       [default: 200mbit]
#   TASKS   ranks per node                       [default: 1]
#   PAGE    file with commands to run instead on the first node, in the caller's directory
#   WRITE, PROXY, ALL2ALL   options of the experiments  [default: short sweeps]
#
# Needs root, and Debian's slurm-wlm and munge. Removes everything that it makes: namespaces, daemons, a
# directory in /tmp. Exit codes: 0 ok, 1 failed, 77 skipped with the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-target/slurm-lab} rate=${RATE:-200mbit} tasks=${TASKS:-1}
ginlab=$(realpath "${GINLAB:-target/release/ginlab}")
skip() { printf 'slurm-lab.sh: skipped: %s\n' "$1" >&2; exit 77; }
fail() { printf 'slurm-lab.sh: %s\n' "$1" >&2; exit 1; }
[[ $(id -u) == 0 ]] || skip 'network namespaces need root'
for tool in slurmctld slurmd munged sbatch srun ip; do
    command -v "$tool" >/dev/null || skip "no $tool here: apt-get install slurm-wlm munge iproute2"
done
[[ -n ${PAGE:-} ]] || grep -q "^MPI  *[^n]" <<<"$("$ginlab" --version)" || skip "$ginlab is built without MPI: make build FEATURES=mpi"
mkdir -p "$out"
out=$(realpath "$out")
page=${PAGE:-} caller=$OLDPWD root=$PWD

work=$(mktemp -d /tmp/ginlab-slurm.XXXXXX)
name=slurm-$$ prefix=ginlab-lab-slurm-$$
pids=()
cleanup() {
    # Clients first: slurmd ends its steps when it exits.
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do kill "${pids[i]}" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do
        for ((wait = 0; wait < 100; wait++)); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.1
        done
        kill -9 "$pid" 2>/dev/null || true
    done
    rm -rf "$work"
    # The commands of PAGE run in the caller's directory.
    "$root/scripts/rails-lab.sh" down --name "$name" || fail "cannot remove the lab $name"
}
trap cleanup EXIT
# A queue that drops nothing: retransmissions would lengthen some rounds at random.
scripts/rails-lab.sh up --name "$name" --rate "$rate" --queue 400 || skip 'cannot create a lab of rails here'

# Each node has its own host name and resolves the others' names.
printf '127.0.0.1 localhost\n10.99.0.1 lab0\n10.99.0.2 lab1\n' >"$work/hosts"
cat >"$work/enter" <<'INNER'
#!/bin/bash
# enter NODE COMMAND...: runs the command in the node's network, with the node's host name.
node=$1
shift
exec ip netns exec "$LAB_PREFIX-$node" unshare --uts --mount bash -c \
    'hostname "$0"; mount --bind "$LAB_WORK/hosts" /etc/hosts; exec "$@"' "lab$node" "$@"
INNER
chmod +x "$work/enter"
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
# GPUs as ParallelCluster declares them, with /dev/null as device of each: jobs request them, and nothing restricts
# access.
for index in {0..7}; do mknod "$work/gpu$index" c 1 3; done
printf 'Name=gpu File=%s/gpu[0-7]\n' "$work" >"$work/gres.conf"
# No control groups: a node's /sys has none, and none are needed.
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
    # Runs outside the checkout, because files that a job writes go to the caller's directory.
    cd "$caller"
    # Emulates a user's installation: the batch file finds the program on PATH.
    unset GINLAB
    PATH=$(dirname "$ginlab"):$PATH
    timeout 400 "$work/enter" 0 bash -euo pipefail "$page" || { code=$?; tail -n 20 "$work"/*.log >&2; fail "$page ended with exit code $code"; }
    exit
fi

kinds=$("$work/enter" 0 srun --mpi=list 2>&1)
if grep -q pmix <<<"$kinds"; then mpi=pmix bootstrap=mpi; else mpi=none bootstrap=tcp; fi
export GINLAB=$ginlab PROVIDER=tcp DEVICE=emulated RAILS=4 MPI=$mpi BOOTSTRAP=$bootstrap MASTER_ADDR=10.99.0.1
export WRITE="${WRITE:--b 256K -e 256K -n 8 -r 2}"
export PROXY="${PROXY:--b 1M -e 4M -f 4 -n 16 -r 5 --mode nbi --strategy split}" ALL2ALL="${ALL2ALL:--b 256K -e 1M -f 4 -n 20 --strategy split}"
{
    printf '$ slurmctld -V; sinfo -N -l; srun --mpi=list\n'
    slurmctld -V
    "$work/enter" 0 sinfo -N -l
    printf '%s\n' "$kinds"
    printf '$ sbatch --wait --ntasks-per-node=%s deploy/slurm/ginlab.sbatch   (PROVIDER=tcp DEVICE=emulated RAILS=4 MPI=%s BOOTSTRAP=%s)\n' "$tasks" "$mpi" "$bootstrap"
} | tee "$out/transcript.txt"
code=0
OUT=$out/slurm timeout 400 "$work/enter" 0 sbatch --wait --chdir="$PWD" --ntasks-per-node="$tasks" --output="$work/job.out" \
    deploy/slurm/ginlab.sbatch 2>&1 | tee -a "$out/transcript.txt" || code=$?
sed "s|$work|WORK|g" "$work/job.out" | tee -a "$out/transcript.txt"
((code == 0)) || { tail -n 20 "$work"/*.log >&2; fail "the job ended with exit code $code"; }

# A rank fails while the others wait for it: --kill-on-bad-exit terminates them, and the job gets the largest exit code.
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
