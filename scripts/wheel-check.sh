#!/usr/bin/env bash
# Installs the wheel in a bare root file system that has only python3, without a network, and uses it there.
#
#   scripts/wheel-check.sh BASE.tar WHEEL     BASE.tar: see scripts/fresh.sh --only wheel
#
#   PIP   file of pip's own wheel   [default: downloaded by this machine's pip]
#
# Needs root. Exit codes: 0 ok, 1 failed, 2 usage.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fail() { printf 'wheel-check.sh: %s\n' "$1" >&2; exit "${2:-1}"; }
[[ $# == 2 && -f $1 && -f $2 ]] || fail 'expected the tar file of a root file system and a wheel; see the head of scripts/wheel-check.sh' 2
base=$1 wheel=$2
[[ $(id -u) == 0 ]] || fail 'not started: needs root'

root=$(mktemp -d /var/tmp/ginlab-wheel.XXXXXX)
trap 'rm -rf --one-file-system "$root"' EXIT
tar -xf "$base" -C "$root"
mkdir -p "$root/root/pip"
if [[ -n ${PIP:-} ]]; then
    cp "$PIP" "$root/root/pip/"
else
    python3 -m pip download -q --disable-pip-version-check --no-deps -d "$root/root/pip" pip || fail 'no pip: set PIP to the file of its wheel'
fi
cp "$wheel" python/tests/bare.py "$root/root/"
# The mounts end with their namespace. The namespace has no network, so that only the wheel's contents are available.
# shellcheck disable=SC2016  # expanded there
unshare --mount --pid --fork --kill-child --net -- bash -euo pipefail -c '
    root=$1
    mount -t proc proc "$root/proc"
    mkdir -p "$root/dev/shm"
    mount -t tmpfs tmpfs "$root/dev/shm"
    [[ -c $root/dev/null ]] || mknod -m 666 "$root/dev/null" c 1 3
    [[ -c $root/dev/urandom ]] || mknod -m 666 "$root/dev/urandom" c 1 9
    ip link set lo up 2>/dev/null || true
    exec chroot "$root" /usr/bin/env -i HOME=/root LANG=C.UTF-8 PATH=/usr/bin:/bin:/usr/sbin:/sbin bash -euo pipefail -c "
        cd /root
        . /etc/os-release && echo \"on \$PRETTY_NAME, \$(python3 --version), without pip and compilers\"
        if command -v pip cc gcc cargo; then exit 1; fi
        python3 -m venv --without-pip environment
        environment/bin/python \$(echo pip/*.whl)/pip install -q --no-index --disable-pip-version-check --root-user-action ignore ./ginlab-*.whl
        environment/bin/ginlab --version
        PATH=/root/environment/bin:\$PATH
        ginlab proxy -p shared --np 2 --rails 1,4 -b 4K -e 64K -n 20 -r 3 --mode nbi --no-header
        environment/bin/python bare.py
    "' bash "$root"
