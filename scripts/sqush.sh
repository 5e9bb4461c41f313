#!/usr/bin/env bash
# Packs a squashfs image for enroot and Pyxis (`srun --container-image`): target/dist/ginlab.sqsh.
#
#   scripts/sqush.sh [--stage STAGE]   stage of the Dockerfile, built by docker or podman [default: efa]
#   scripts/sqush.sh --image NAME      an image of docker or podman, not built here
#   scripts/sqush.sh --in BASE.tar     the archive of `make dist` in this root file system, without docker
#   scripts/sqush.sh ... --start       also start the image, without enroot: unsquashfs and chroot; needs root
#
#   OUT             file to write                          [default: target/dist/ginlab.sqsh]
#   ARCHIVE         archive for --in                       [default: the newest target/dist/ginlab-*-linux.tar.gz]
#   SQUASH_OPTIONS  options of mksquashfs                  [default: those of mksquashfs, which every kernel reads]
#
# An image of docker or podman is imported by enroot if that is installed. Otherwise its files are exported and packed
# by mksquashfs, with the image's environment and command where enroot reads them: /etc/environment and /etc/rc. Run so
# far: --in, --start, and the calls of docker and enroot (tests/command/sqush.rs). Not run: docker, podman and enroot.
# Exit codes: 0 ok, 1 failed, 2 usage or a missing tool.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
refuse() { printf 'sqush.sh: %s\n' "$1" >&2; exit 2; }
have() { command -v "$1" >/dev/null; }
stage=efa image='' base='' start=''
while (($#)); do
    case $1 in
    --stage | --image | --in)
        [[ -n ${2:-} ]] || refuse "$1: expected a value; see the head of scripts/sqush.sh"
        case $1 in --stage) stage=$2 ;; --image) image=$2 ;; --in) base=$2 ;; esac
        shift
        ;;
    --start) start=yes ;;
    *) refuse "unknown argument $1; see the head of scripts/sqush.sh" ;;
    esac
    shift
done
target=${CARGO_TARGET_DIR:-target}
out=${OUT:-$target/dist/ginlab.sqsh}

# Everything is checked before anything is built.
if [[ -n $base ]]; then
    [[ -f $base ]] || refuse "--in: $base is not a file; expected the tar file of a root file system"
    archives=("$target"/dist/ginlab-*-linux.tar.gz)
    archive=${ARCHIVE:-${archives[-1]}}
    [[ -f $archive ]] || refuse 'no archive in target/dist: run make dist first'
else
    engine=
    for engine in docker podman ''; do
        if [[ -z $engine ]] || have "$engine"; then break; fi
    done
    [[ -n $engine ]] || refuse 'neither docker nor podman is installed, which build the image; --in BASE.tar needs none'
    "$engine" info >/dev/null 2>&1 || refuse "$engine does not respond ($engine info); --in BASE.tar needs none"
fi
if ! have mksquashfs && { [[ -n $base ]] || ! have enroot; }; then
    missing='neither enroot nor mksquashfs is'
    [[ -z $base ]] || missing='mksquashfs is not'
    refuse "$missing installed (apt-get install squashfs-tools)"
fi
if [[ -n $start ]]; then
    [[ $(id -u) == 0 ]] || refuse '--start needs root'
    have unsquashfs || refuse '--start: unsquashfs is not installed (apt-get install squashfs-tools)'
fi

work=$(mktemp -d /var/tmp/ginlab-sqush.XXXXXX)
trap 'rm -rf "$work"' EXIT
mkdir -p "$(dirname "$out")" "$work/root"
# Packs the files of $work/root. enroot starts a container with /etc/rc, and pyxis with the command of srun.
pack() { # COMMAND OF THE IMAGE
    printf '%s\n' '#!/bin/sh' "[ \$# -gt 0 ] && exec \"\$@\"" "exec $1" >"$work/root/etc/rc"
    chmod 755 "$work/root/etc/rc"
    # Files belong to root, although this user may have unpacked them.
    # shellcheck disable=SC2086  # several options
    mksquashfs "$work/root" "$out" -noappend -all-root -no-progress ${SQUASH_OPTIONS:-} >/dev/null
}
if [[ -n $base ]]; then
    # Device nodes come from the host.
    tar -xf "$base" -C "$work/root" --exclude='./dev/*' --exclude='dev/*'
    mkdir -p "$work/root"/{dev,etc,proc,sys,tmp,usr/local/bin} "$work/files"
    tar -xf "$archive" -C "$work/files" --strip-components 1
    install "$work"/files/ginlab "$work/root/usr/local/bin/"
    install -m 644 "$work"/files/*.so "$work/root/usr/local/bin/"
    install "$work"/files/deploy/ranks.sh "$work/root/usr/local/bin/ginlab-ranks"
    echo 'PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' >"$work/root/etc/environment"
    pack 'ginlab doctor'
else
    if [[ -z $image ]]; then
        image=ginlab:$stage
        "$engine" build --target "$stage" --build-arg GINLAB_COMMIT="$(git rev-parse HEAD 2>/dev/null || true)" -t "$image" .
    fi
    if have enroot; then
        # enroot does not replace a file.
        rm -f "$out"
        case $engine in docker) from=dockerd ;; *) from=podman ;; esac
        enroot import -o "$out" "$from://$image"
    else
        container=$("$engine" create "$image")
        "$engine" export "$container" | tar -xf - -C "$work/root" --exclude='dev/*'
        "$engine" rm "$container" >/dev/null
        "$engine" inspect --format '{{range .Config.Env}}{{println .}}{{end}}' "$image" | sed '/^$/d' >"$work/root/etc/environment"
        pack "$("$engine" inspect --format '{{range .Config.Cmd}}{{printf "%q " .}}{{end}}' "$image")"
    fi
fi
printf '%s: %s bytes\n' "$out" "$(stat -c %s "$out")"
[[ -n $start ]] || exit 0

unsquashfs -quiet -no-progress -dest "$work/started" "$out" >/dev/null
# Like enroot, starts /etc/rc with only the image's environment, in new mount and process namespaces. A new network
# namespace has no interfaces.
# shellcheck disable=SC2016  # expanded there
unshare --mount --pid --fork --kill-child --net -- bash -euo pipefail -c '
    root=$1
    for part in dev dev/shm proc tmp; do mkdir -p "$root/$part"; done
    mount --rbind /dev "$root/dev"
    mount -t proc proc "$root/proc"
    mount -t tmpfs tmpfs "$root/dev/shm"
    ip link set lo up 2>/dev/null || true
    mapfile -t environment <"$root/etc/environment"
    inside() { env -i "${environment[@]}" chroot "$root" /etc/rc "$@"; }
    inside ginlab --version
    inside ginlab proxy -p model:p5 --np 2 --rails 1,4 -b 64K -e 64K -n 4 -r 1 --mode nbi --no-header
' bash "$work/started"
