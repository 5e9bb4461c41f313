#!/usr/bin/env bash
# The commands of deploy/k8s/mpijob/mpijob.yaml as they stand, without Kubernetes: a launcher and two workers with sshd, each in a root
# file system (an overlay of this one), a network and a name of its own; keys mounted as a secret is; results on the launcher.
#
#   scripts/mpijob-lab.sh [FOLDER]     results and transcript go to FOLDER [default: target/mpijob-lab]; RATE=200mbit SLOTS=1
#
# Needs root, overlayfs, openssh-server, Open MPI and python3-yaml; ginlab built with --features mpi (GINLAB=PATH). Everything it makes
# is removed. Exit codes: 0 ok, 1 failed, 77 skipped, with its reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
skip() { printf 'mpijob-lab.sh: skipped: %s\n' "$1" >&2; exit 77; }
[[ $(id -u) == 0 ]] || skip 'it needs root'
for tool in sshd ssh-keygen mpirun ip python3; do
    command -v "$tool" >/dev/null || [[ -x /usr/sbin/$tool ]] || skip "no $tool here: apt-get install openssh-server openmpi-bin iproute2 python3-yaml"
done
python3 -c 'import yaml' 2>/dev/null || skip 'no python3-yaml here'
out=${1:-target/mpijob-lab}
ginlab=$(realpath "${GINLAB:-target/release/ginlab}")
mkdir -p "$out"
out=$(realpath "$out")
# Overlays, processes and the names of the lab's nodes end with namespaces of our own.
if [[ -z ${GINLAB_LAB_INSIDE:-} ]]; then
    code=0
    export GINLAB_LAB_INSIDE=$$
    work=$(mktemp -d /var/tmp/ginlab-mpijob.XXXXXX)
    LAB_WORK=$work unshare --mount --pid --fork --kill-child --mount-proc -- "$0" "$out" || code=$?
    scripts/rails-lab.sh down --name "mpijob-$$" >/dev/null 2>&1 || true
    rm -rf "$work"
    exit "$code"
fi
work=$LAB_WORK name=mpijob-$GINLAB_LAB_INSIDE
scripts/rails-lab.sh up --name "$name" --nodes 3 --rate "${RATE:-200mbit}" || skip 'no lab of rails can be made here'

# The containers' commands and the launcher's variables, out of the file.
python3 - deploy/k8s/mpijob/mpijob.yaml "$work" <<'PYTHON'
import os, shlex, sys, yaml
job = yaml.safe_load(open(sys.argv[1]))
roles = job["spec"]["mpiReplicaSpecs"]
for role in ("Launcher", "Worker"):
    container = roles[role]["template"]["spec"]["containers"][0]
    command = container["command"] + container.get("args", [])
    lines = [f"export {one['name']}={shlex.quote(one['value'])}" for one in container.get("env", [])]
    # What the lab has other than the file: the values of variables, not the commands.
    if role == "Launcher":
        small = {"PROXY": "-b 1M -e 4M -f 4 -n 16 -r 5 --mode nbi --strategy split", "ALL2ALL": "-b 256K -e 1M -f 4 -n 20 --strategy split"}
        lines += ["export PROVIDER=tcp DEVICE=emulated RAILS=4"]
        lines += [f"export {name}={shlex.quote(os.environ.get(name) or value)}" for name, value in small.items()]
    open(f"{sys.argv[2]}/{role}.sh", "w").write("\n".join(lines) + "\nexec " + shlex.join(command) + "\n")
PYTHON
ssh-keygen -q -t ecdsa -N '' -f "$work/key"
printf '127.0.0.1 localhost\n10.99.0.1 ginlab-worker-0\n10.99.0.2 ginlab-worker-1\n10.99.0.3 ginlab-launcher\n' >"$work/hosts"

pod() { # NODE NAME
    local root=$work/$2/root
    mkdir -p "$root" "$work/$2/upper" "$work/$2/work"
    mount -t overlay overlay -o "lowerdir=/,upperdir=$work/$2/upper,workdir=$work/$2/work" "$root" || skip 'no overlay of this root can be mounted'
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/run"
    mount -t tmpfs tmpfs "$root/tmp"
    cp "$work/hosts" "$root/etc/hosts"
    rm -f "$root"/etc/ssh/ssh_host_*
    install -m 755 "$ginlab" "$root/usr/local/bin/ginlab"
    # A secret as kubelet mounts it: a folder that everybody may write to, links over a folder of data.
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
inside() { # NODE NAME SCRIPT
    # shellcheck disable=SC2016  # expanded there
    ip netns exec "ginlab-lab-$name-$1" unshare --uts --mount bash -c 'hostname "$0"; mount -t sysfs sysfs "$1/sys" 2>/dev/null || true
        exec chroot "$1" env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
            OMPI_MCA_orte_keep_fqdn_hostnames=true OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile \
            OMPI_MCA_oob_tcp_if_include=10.99.0.0/24 OMPI_MCA_btl_tcp_if_include=10.99.0.0/24 bash "/root/$2"' "$2" "$work/$2/root" "$3"
}
pod 0 ginlab-worker-0
pod 1 ginlab-worker-1
pod 2 ginlab-launcher
inside 0 ginlab-worker-0 Worker.sh >"$work/worker-0.log" 2>&1 &
inside 1 ginlab-worker-1 Worker.sh >"$work/worker-1.log" 2>&1 &
code=0
timeout 300 bash -c "$(declare -f inside); name=$name work=$work; inside 2 ginlab-launcher Launcher.sh" 2>&1 | tee "$out/transcript.txt" || code=$?
cp "$work"/ginlab-launcher/root/results/*.json "$out/" 2>/dev/null || true
if ((code)); then
    tail -n 20 "$work"/worker-*.log >&2
    printf 'mpijob-lab.sh: the launcher ended with exit code %s\n' "$code" >&2
    exit 1
fi
printf 'mpijob-lab.sh: results in %s\n' "$out"
