#!/usr/bin/env bash
# Runs `make demo` and `make test` on a bare machine: makes a root file system from the distribution's packages, clones
# HEAD into it, runs both commands there, and prints their times.
#
#   scripts/fresh.sh [--release bookworm|trixie] [--only demo|test|soft-efa|wheel] [--prepare] [--twice] [--keep] [--work DIR]
#   --twice                 run `make test` again, with the build outputs of the first run
#   --only soft-efa         instead run the table soft-efa over the distribution's libfabric, with the local
#                           ginlab; the matrix is written to DIR/soft-efa-RELEASE
#   --only wheel            instead install the wheel of target/dist (make wheel) with only python3: scripts/wheel-check.sh
#   --prepare               only make the root file system, for later calls; those of soft-efa then need no network
#   --keep                  keep the root directory
#   --work DIR              [default: /var/tmp/ginlab-fresh]
#
#   GINLAB  program for --only soft-efa   [default: target/release/ginlab]
#   SHORT   1: a short matrix             [default: 0]
#
# Needs root, debootstrap and a network. Changes nothing outside DIR. Exit codes: 0 ok, 1 a command failed, 2 not run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() { printf 'fresh.sh: %s\n' "$*" >&2; exit 2; }
arguments=("$@")
release=bookworm
only=
twice=
keep=
prepare=
work=/var/tmp/ginlab-fresh
while (($#)); do
    case $1 in
    --release) release=${2:?} && shift ;;
    --only) only=${2:?} && shift ;;
    --work) work=${2:?} && shift ;;
    --twice) twice=yes ;;
    --prepare) prepare=yes ;;
    --keep) keep=yes ;;
    -h | --help) sed -n '2,18s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit ;;
    *) fail "unknown argument $1: scripts/fresh.sh --help lists them" ;;
    esac
    shift
done
case $release in bookworm | trixie) ;; *) fail "--release $release: expected bookworm or trixie" ;; esac
[[ $(id -u) == 0 ]] || fail 'not run: needs root (chroot, mounts)'
command -v debootstrap >/dev/null || fail 'not run: no debootstrap (apt-get install debootstrap)'

# Mounts and processes end with their namespaces, however the script exits.
if [[ -z ${GINLAB_FRESH_INSIDE:-} ]]; then
    unshare --mount --pid --fork true 2>/dev/null || fail 'not run: cannot create mount and PID namespaces here'
    GINLAB_FRESH_INSIDE=yes exec unshare --mount --pid --fork --kill-child -- scripts/fresh.sh "${arguments[@]}"
fi
probe=$(mktemp -d)
for kind in proc sysfs tmpfs devpts; do
    mount -t "$kind" "$kind" "$probe" 2>/dev/null || fail "not run: cannot mount $kind here"
    umount "$probe"
done
rmdir "$probe"

mirror=http://deb.debian.org/debian
name=$release
# git and make: a user who clones and runs `make demo` has them.
packages=git,make,ca-certificates
base=$work/$release.tar
if [[ $only == soft-efa ]]; then
    # Open MPI's library, for a program built with it.
    packages=libfabric1,libfabric-bin,iproute2,libopenmpi40,python3
    if [[ $release == bookworm ]]; then packages=${packages/openmpi40/openmpi3}; fi
    name=matrix-$release-root
    base=$work/matrix-$release.tar
fi
if [[ $only == wheel ]]; then
    packages=python3
    name=wheel-$release-root
    base=$work/wheel-$release.tar
fi
root=$work/$name
log=$work/$name.log
# The unpacked base, read-only, for runs that change little in it.
lower=${base%.tar}-lower
mkdir -p "$work"
printf 'fresh.sh: %s, log %s\n' "$name" "$log"
: >"$log"

# --- root file system -------------------------------------------------------------------------------------------------

if [[ ! -r $base ]]; then
    rm -rf "$root"
    debootstrap --variant=minbase "--include=$packages" "$release" "$root" "$mirror" >>"$log" 2>&1 ||
        fail "debootstrap failed, see $log"
    printf 'deb %s %s main\ndeb %s-security %s-security main\ndeb %s %s-updates main\n' \
        "$mirror" "$release" "$mirror" "$release" "$mirror" "$release" >"$root/etc/apt/sources.list"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
    tar -C "$root" -cf "$base.part" . && mv "$base.part" "$base"
    rm -rf --one-file-system "$lower"
    if [[ $only == soft-efa ]]; then touch "$root" && mv "$root" "$lower"; else rm -rf --one-file-system "$root"; fi
fi
if [[ -n $prepare ]]; then exit; fi
if [[ $only == wheel ]]; then
    wheel=$(compgen -G "${CARGO_TARGET_DIR:-target}/dist/ginlab-*.whl") || fail 'not run: no wheel (make wheel)'
    exec scripts/wheel-check.sh "$base" "$wheel"
fi
mount --make-rprivate /

# --- a new root for each command, so that the commands are independent ------------------------------------------------

remove_root() {
    umount -R "$root" 2>/dev/null || true
    umount "$root.top" 2>/dev/null || true
    rm -rf --one-file-system "$root" "$root.top"
}

# Overlays a tmpfs on the unpacked base, which is faster than unpacking it again. Fails if overlays cannot be mounted,
# as in some containers; then the caller unpacks the base.
layered() {
    if [[ ! -d $lower || $base -nt $lower ]]; then
        rm -rf --one-file-system "$lower" "$lower.part"
        mkdir "$lower.part"
        tar -C "$lower.part" -xf "$base"
        touch "$lower.part" && mv "$lower.part" "$lower"
    fi
    mkdir -p "$root.top"
    mount -t tmpfs tmpfs "$root.top"
    mkdir "$root.top/upper" "$root.top/work"
    mount -t overlay overlay -o "lowerdir=$lower,upperdir=$root.top/upper,workdir=$root.top/work" "$root" 2>>"$log" || return 1
}

make_root() {
    local device variable
    remove_root
    mkdir -p "$root"
    # The root must be a mount, because `ip netns` changes how / is mounted.
    if [[ $only != soft-efa ]] || ! layered; then
        tar -C "$root" -xf "$base"
        mount --bind "$root" "$root"
    fi
    mount -t proc proc "$root/proc"
    mount -t sysfs sysfs "$root/sys"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    for device in null zero full random urandom tty; do
        touch "$root/dev/$device" && mount --bind "/dev/$device" "$root/dev/$device"
    done
    mkdir -p "$root/dev/shm" "$root/dev/pts"
    mount -t tmpfs -o size=4g tmpfs "$root/dev/shm"
    mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts" && ln -s pts/ptmx "$root/dev/ptmx"
    ln -s /proc/self/fd "$root/dev/fd"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    echo "127.0.0.1 localhost $(hostname)" >"$root/etc/hosts"

    # Passes on only this machine's access to the registries: certificates and proxies.
    mkdir -p "$root/etc/ssl" && cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/fresh.crt"
    environment=(HOME=/root LANG=C.UTF-8 TERM=dumb PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin)
    for variable in SSL_CERT_FILE CARGO_HTTP_CAINFO CURL_CA_BUNDLE PIP_CERT REQUESTS_CA_BUNDLE GIT_SSL_CAINFO; do
        environment+=("$variable=/etc/ssl/fresh.crt")
    done
    for variable in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY PIP_INDEX_URL; do
        if [[ -n ${!variable:-} ]]; then environment+=("$variable=${!variable}"); fi
    done
    if [[ -r ${CARGO_HOME:-$HOME/.cargo}/config.toml ]]; then
        mkdir -p "$root/root/.cargo" && cp "${CARGO_HOME:-$HOME/.cargo}/config.toml" "$root/root/.cargo/"
    fi
}
inside() { chroot "$root" /usr/bin/env -i "${environment[@]}" "$@"; }

# --- the two commands -------------------------------------------------------------------------------------------------

failures=0
say_time() { # say_time LABEL COMMAND...
    local label=$1 started=$SECONDS code=0
    shift
    printf '\n##### %s\n' "$label" >>"$log"
    inside sh -c "cd /root/ginlab && $*" >>"$log" 2>&1 </dev/null || code=$?
    printf 'fresh.sh: %-24s %2d min %02d s  %s\n' "$label" $(((SECONDS - started) / 60)) $(((SECONDS - started) % 60)) \
        "$(if ((code)); then echo "FAILED with $code"; else echo ok; fi)"
    if ((code)); then
        tail -n 25 "$log" | sed 's/^/    /'
        failures=$((failures + 1))
    fi
}
if [[ $only == soft-efa ]]; then
    ginlab=${GINLAB:-target/release/ginlab}
    [[ -x $ginlab ]] || fail "not run: no $ginlab (cargo build --release)"
    make_root
    mkdir -p "$root/root/ginlab"
    # Test builds have the software NICs in cargo's directory deps.
    cards=${ginlab%/*}/deps/libsoft_efa.so
    [[ -f $cards ]] || cards=${ginlab%/*}/libsoft_efa.so
    cp -r scripts "$ginlab" "$cards" "$root/root/ginlab/"
    short=
    if [[ ${SHORT:-0} == 1 ]]; then
        # One rail on the machine and four between nodes, few rounds, few buffers.
        short="--only 'machine(-1)?$|lab(-4)?$' --set many=10 --set some=3 --set repeats=1 --set rx=64 --set tx=64"
    fi
    # shellcheck disable=SC2016  # dpkg's own format
    say_time "soft-efa, $(inside dpkg-query -W -f '${Version}' libfabric1)" "scripts/matrix.py soft-efa --ginlab ./ginlab --out /root/matrix $short"
    mkdir -p "$work/soft-efa-$release"
    cp "$root"/root/matrix/*.* "$work/soft-efa-$release/" 2>/dev/null || fail "no matrix, see $log"
    cat "$work/soft-efa-$release/matrix.csv"
fi
for command in demo test; do
    if [[ -n $only && $only != "$command" ]]; then continue; fi
    make_root
    inside apt-get update -q >>"$log" 2>&1 || fail "apt-get update failed, see $log"
    git clone -q --no-hardlinks . "$root/root/ginlab"
    say_time "make $command" make "$command"
    if [[ -n $twice ]]; then say_time "make $command, again" make "$command"; fi
    if [[ $command == demo ]]; then
        awk '/^##### make demo$/ {on = 1} on && /^case /, /^$/ {print "    " $0}' "$log" | head -n 40
    else
        sed -n '/^Not run in this place:/,/^$/p' "$log" | sort -u
        grep -E '^(total|test result|[0-9]+ passed|     Summary)' "$log" | tail -n 1
    fi
done
if [[ -z $keep ]]; then remove_root; fi
exit $((failures > 0))
