#!/usr/bin/env bash
# Runs a command in an environment in which libfabric 1.17 loads in 10 ms instead of 0.3 s.
#
#   scripts/hide-slow-libraries.sh DIR COMMAND ARGS...     DIR: for the replacement libraries
#
#  - libfabric's verbs provider reads /proc/kallsyms twice (65 ms) for an unneeded symbol: the file is empty.
#  - libinfinipath and libpsm2, used by two other providers, sleep 0.1 s each to measure the CPU clock: replaced by
#    libraries of the same names whose functions fail, since nothing here uses their NICs.
#
# Uses its own mount namespace, so that nothing on this machine changes. Without permission for one, the command runs
# unmodified. Exit codes: those of the command.
set -euo pipefail

library() { ldconfig -p 2>/dev/null | awk -v name="$1" '$1 == name && !found++ {print $NF}'; }

inside() {
    local name path
    mount --bind /dev/null /proc/kallsyms || true
    for name in libpsm_infinipath.so.1 libpsm2.so.2; do
        path=$(library "$name")
        if [[ -r $folder/$name && -n $path ]]; then mount --bind "$folder/$name" "$(realpath "$path")" || true; fi
    done
    exec "$@"
}

# make_stub NAME PREFIX: makes a library in which each function of the original exists, with its version, and fails.
# libfabric calls some of them, Debian 13's Open MPI others.
make_stub() {
    local theirs version
    theirs=$(nm -D --defined-only "$(library "$1")" | awk -v prefix="^$2_" '$3 ~ prefix {print $3}')
    [[ -n $theirs ]] || return
    version=$(sed -n 's/.*@//p;q' <<<"$theirs")
    printf '%s { *; };\n' "$version" >"$folder/$1.version"
    sed 's/@.*//; s/$/(void) { return 1; }/; s/^/int /' <<<"$theirs" >"$folder/$1.c"
    cc -shared -fPIC "-Wl,-soname,$1" ${version:+"-Wl,--version-script=$folder/$1.version"} -o "$folder/$1.part" "$folder/$1.c"
    mv "$folder/$1.part" "$folder/$1"
}

folder=$1
shift
if [[ -n ${GINLAB_HIDING:-} ]]; then
    unset GINLAB_HIDING
    inside "$@"
fi
mkdir -p "$folder"
make_stub libpsm_infinipath.so.1 psm 2>/dev/null || true
make_stub libpsm2.so.2 psm2 2>/dev/null || true
if unshare --mount true 2>/dev/null; then GINLAB_HIDING=yes exec unshare --mount -- "$0" "$folder" "$@"; fi
exec "$@"
