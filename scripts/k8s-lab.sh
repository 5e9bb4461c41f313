#!/usr/bin/env bash
# Runs the unchanged commands of deploy/k8s and deploy/skypilot/kubernetes.yaml without Kubernetes, in three pods, each
# with its own root file system (an overlay of this one), network and host name. First the MPIJob: doctor as init step,
# which must reject a node without EFA, then the launcher and two workers with sshd, keys mounted like a secret, and
# results on the launcher. Then the Indexed Job on both workers, and SkyPilot's task without EFA.
#
#   scripts/k8s-lab.sh [DIR]     DIR: for results and transcript [default: target/k8s-lab]
#
#   GINLAB    program, built with --features mpi   [default: target/release/ginlab]
#   PROVIDER  fabric, such as soft-efa:p5,cards=32 (software NICs of a p5)   [default: tcp]
#   MANIFEST  file with an MPIJob, the output of `kubectl kustomize`; runs only this job
#   RATE      rate of a rail     [default: 200mbit]
#   SLOTS     ranks per worker   [default: 1]
#   WRITE, PROXY, ALL2ALL   options of the experiments [default: short sweeps]
#
# Needs root, overlayfs, openssh-server, Open MPI and python3-yaml. Removes everything that it makes. Exit codes: 0 ok,
# 1 failed, 77 skipped with the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
skip() { printf 'k8s-lab.sh: skipped: %s\n' "$1" >&2; exit 77; }
[[ $(id -u) == 0 ]] || skip 'needs root'
for tool in sshd ssh-keygen mpirun ip python3; do
    command -v "$tool" >/dev/null || [[ -x /usr/sbin/$tool ]] || skip "no $tool here: apt-get install openssh-server openmpi-bin iproute2 python3-yaml"
done
python3 -c 'import yaml' 2>/dev/null || skip 'no python3-yaml here'
out=${1:-target/k8s-lab}
ginlab=$(realpath "${GINLAB:-target/release/ginlab}")
mkdir -p "$out"
out=$(realpath "$out")
# Overlays, processes and host names end with these namespaces.
if [[ -z ${GINLAB_LAB_INSIDE:-} ]]; then
    code=0
    export GINLAB_LAB_INSIDE=$$
    work=$(mktemp -d /var/tmp/ginlab-k8s.XXXXXX)
    LAB_WORK=$work unshare --mount --pid --fork --kill-child --mount-proc -- "$0" "$out" || code=$?
    rm -rf "$work"
    scripts/rails-lab.sh down --name "k8s-$$" || code=1
    exit "$code"
fi
work=$LAB_WORK name=k8s-$GINLAB_LAB_INSIDE
scripts/rails-lab.sh up --name "$name" --nodes 3 --rate "${RATE:-200mbit}" || skip 'cannot create a lab of rails here'

# Extracts the commands and variables of the containers from the files. The lab changes values of variables, not
# commands.
python3 - "$work" <<'PYTHON'
import os, re, shlex, sys, yaml

small = {"WRITE": "-b 256K -e 256K -n 8 -r 2", "PROXY": "-b 1M -e 4M -f 4 -n 16 -r 5 --mode nbi --strategy split", "ALL2ALL": "-b 256K -e 1M -f 4 -n 20 --strategy split"}
here = {"PROVIDER": os.environ.get("PROVIDER") or "tcp", "DEVICE": "emulated", "RAILS": "4", "WAIT": "0", "EFA": "0", "RANKS_PER_NODE": "1"}
here.update({name: os.environ.get(name) or value for name, value in small.items()})


def write(role, command, variables):
    """Writes a script. Like Kubernetes, replaces $(NAME) in the command by the variables of the container."""
    values = {name: here.get(name, value) for name, value in variables.items()}
    command = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word) for word in command]
    lines = [f"export {name}={shlex.quote(value)}" for name, value in values.items()]
    open(f"{sys.argv[1]}/{role}.sh", "w").write("\n".join(lines) + "\nexec " + shlex.join(command) + "\n")


def container(role, container):
    variables = {one["name"]: one.get("value", "a-secret-of-the-lab") for one in container.get("env", [])}
    write(role, container["command"] + container.get("args", []), variables)


manifest = os.environ.get("MANIFEST") or "deploy/k8s/mpijob/mpijob.yaml"
roles = next(one for one in yaml.safe_load_all(open(manifest)) if one["kind"] == "MPIJob")["spec"]["mpiReplicaSpecs"]
for role in ("Launcher", "Worker"):
    container(role, roles[role]["template"]["spec"]["containers"][0])
container("Doctor", roles["Worker"]["template"]["spec"]["initContainers"][0])
job = next(one for one in yaml.safe_load_all(open("deploy/k8s/job/job.yaml")) if one["kind"] == "Job")
container("Job", job["spec"]["template"]["spec"]["containers"][0])
task = yaml.safe_load(open("deploy/skypilot/kubernetes.yaml"))
write("Task", ["bash", "-c", task["run"]], {**task["envs"], "GINLAB_TOKEN": "a-secret-of-the-lab"})
PYTHON
ssh-keygen -q -t ecdsa -N '' -f "$work/key"
printf '127.0.0.1 localhost\n10.99.0.1 ginlab-worker-0 ginlab-0.ginlab\n10.99.0.2 ginlab-worker-1\n10.99.0.3 ginlab-launcher\n' >"$work/hosts"

# libfabric's pool sizes of a test, also for ranks, whose parent is a daemon of mpirun started by sshd.
pools=$(env | sed -n '/^FI_[A-Z_]*=[0-9]*$/p' | paste -sd ' ')
pod() { # NODE NAME
    local root=$work/$2/root
    mkdir -p "$root" "$work/$2/upper" "$work/$2/work"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$work/$2/upper,workdir=$work/$2/work" "$root" || skip 'cannot mount an overlay of this root'
    mount -t proc proc "$root/proc"
    # See hide-slow-libraries.sh.
    mount --bind /dev/null "$root/proc/kallsyms" || true
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/run"
    mount -t tmpfs tmpfs "$root/tmp"
    cp "$work/hosts" "$root/etc/hosts"
    rm -f "$root"/etc/ssh/ssh_host_*
    if [[ -n $pools && -d $root/etc/ssh/sshd_config.d ]]; then echo "SetEnv $pools" >"$root/etc/ssh/sshd_config.d/lab.conf"; fi
    install -m 755 "$ginlab" "$root/usr/local/bin/ginlab"
    # In the directory of the program, or in deps if only tests have been built.
    for cards in "${ginlab%/*}" "${ginlab%/*}/deps"; do
        if [[ -f $cards/libsoft_efa.so ]]; then install -m 644 "$cards/libsoft_efa.so" "$root/usr/local/bin/" && break; fi
    done
    install -m 755 deploy/ranks.sh "$root/usr/local/bin/ginlab-ranks"
    # A secret as mounted by kubelet: a world-writable directory with links into a directory of data.
    mkdir -p "$root/root/.ssh" "$root/etc/mpi" "$root/results"
    mount -t tmpfs -o mode=1777 tmpfs "$root/root/.ssh"
    mkdir "$root/root/.ssh/..data"
    install -m 600 "$work/key" "$root/root/.ssh/..data/id_rsa"
    install -m 600 "$work/key.pub" "$root/root/.ssh/..data/id_rsa.pub"
    install -m 600 "$work/key.pub" "$root/root/.ssh/..data/authorized_keys"
    for file in id_rsa id_rsa.pub authorized_keys; do ln -s "..data/$file" "$root/root/.ssh/$file"; done
    printf 'ginlab-worker-0 slots=%s\nginlab-worker-1 slots=%s\n' "${SLOTS:-1}" "${SLOTS:-1}" >"$root/etc/mpi/hostfile"
    cp "$work"/*.sh "$root/root/"
}
inside() { # NODE NAME SCRIPT [VARIABLE=VALUE...]
    local node=$1 pod=$2 script=$3
    shift 3
    # shellcheck disable=SC2016  # expanded there
    ip netns exec "ginlab-lab-$name-$node" unshare --uts --mount bash -c 'hostname "$0"; mount -t sysfs sysfs "$1/sys" 2>/dev/null || true
        root=$1 script=$2
        shift 2
        exec chroot "$root" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
            OMPI_MCA_orte_keep_fqdn_hostnames=true OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile \
            OMPI_MCA_oob_tcp_if_include=10.99.0.0/24 OMPI_MCA_btl_tcp_if_include=10.99.0.0/24 "$@" bash "/root/$script"' "$pod" "$work/$pod/root" "$script.sh" "$@"
}
pod 0 ginlab-worker-0
pod 1 ginlab-worker-1
pod 2 ginlab-launcher
bounded() { # SECONDS inside's arguments
    local seconds=$1
    shift
    timeout "$seconds" bash -c "$(declare -f inside); name=$name work=$work; inside \"\$@\"" bash "$@"
}
failed() { # WHAT CODE
    tail -n 20 "$work"/*.log >&2
    printf 'k8s-lab.sh: %s ended with exit code %s\n' "$1" "$2" >&2
    exit 1
}
printf '== init step of a worker on a node without EFA\n' | tee "$out/transcript.txt"
code=0
bounded 120 0 ginlab-worker-0 Doctor >"$work/doctor.log" 2>&1 || code=$?
grep '^fail\|^ginlab' "$work/doctor.log" | tee -a "$out/transcript.txt"
((code == 3)) || failed 'doctor without EFA' "$code"
cp "$work/doctor.log" "$out/"

printf '== MPIJob\n' | tee -a "$out/transcript.txt"
inside 0 ginlab-worker-0 Worker >"$work/worker-0.log" 2>&1 &
inside 1 ginlab-worker-1 Worker >"$work/worker-1.log" 2>&1 &
code=0
# The log also has the rows as JSON documents; they are kept in the same directory as the transcript.
bounded 300 2 ginlab-launcher Launcher 2>&1 | { grep -v '^ *["{}\[\]\|^ *\]' || true; } | tee "$out/launcher.log" | tee -a "$out/transcript.txt" || code=$?
cp "$work"/ginlab-launcher/root/results/*.json "$out/" 2>/dev/null || true
((code == 0)) || failed 'the launcher' "$code"
if [[ -n ${MANIFEST:-} ]]; then exit; fi

both() { # WHAT SCRIPT VARIABLES-BY-NODE...: runs in two pods; rank 0 prints
    local what=$1 script=$2 index=$3 second
    shift 3
    printf '== %s\n' "$what" | tee -a "$out/transcript.txt"
    bounded 300 1 ginlab-worker-1 "$script" "$index=1" "$@" >"$work/$script-1.log" 2>&1 &
    second=$!
    code=0
    bounded 300 0 ginlab-worker-0 "$script" "$index=0" "$@" >"$work/$script.out" 2>"$work/$script-0.log" || code=$?
    # The JSON document is kept separately.
    { cat "$work/$script-0.log"; grep -v '^ *["{}\[\]]' "$work/$script.out" || true; } | tee -a "$out/transcript.txt"
    ((code == 0)) || failed "$what, node 0" "$code"
    wait "$second" || failed "$what, node 1" "$?"
}
code=0
both 'Job' Job JOB_COMPLETION_INDEX
cp "$work/ginlab-worker-0/root/results/proxy.json" "$out/job.json"
both 'the task of SkyPilot without EFA' Task SKYPILOT_NODE_RANK SKYPILOT_NODE_IPS=$'10.99.0.1\n10.99.0.2' SKYPILOT_NUM_NODES=2 SKYPILOT_NUM_GPUS_PER_NODE=1
cp "$work/ginlab-worker-0/root/ginlab-tcp.csv" "$out/task.csv"
printf 'k8s-lab.sh: results in %s\n' "$out"
