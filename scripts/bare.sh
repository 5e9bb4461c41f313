#!/usr/bin/env bash
# Runs a bash script, read from stdin, in a root file system without a network, so that only the given files are available.
#
#   scripts/bare.sh BASE.tar FILE... <SCRIPT     the files are copied to /root, where the script starts
#
# Needs root. Exit codes: that of the script, 2 not started.
set -euo pipefail
[[ $(id -u) == 0 ]] || { echo 'bare.sh: not started: needs root' >&2; exit 2; }
root=$(mktemp -d /var/tmp/ginlab-bare.XXXXXX)
trap 'rm -rf --one-file-system "$root"' EXIT
tar -xf "$1" -C "$root"
cp "${@:2}" "$root/root/"
cat >"$root/root/script.sh"
# The mounts end with their namespace.
# shellcheck disable=SC2016  # expanded there
unshare --mount --pid --fork --kill-child --net -- bash -euo pipefail -c '
    root=$1
    mount -t proc proc "$root/proc"
    mkdir -p "$root/dev/shm"
    mount -t tmpfs tmpfs "$root/dev/shm"
    [[ -c $root/dev/null ]] || mknod -m 666 "$root/dev/null" c 1 3
    [[ -c $root/dev/urandom ]] || mknod -m 666 "$root/dev/urandom" c 1 9
    ip link set lo up 2>/dev/null || true
    exec chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/bin:/bin:/usr/sbin:/sbin \
        bash -euo pipefail -c "cd /root; . /etc/os-release; echo \"on \$PRETTY_NAME\"; exec bash -euo pipefail script.sh"' bash "$root" </dev/null
