#!/usr/bin/env bash
# Tries the two commands of the README where nobody has prepared the machine: makes a bare root file system from the distribution's
# packages, clones HEAD into it, runs `make demo` and `make test` there, and prints their times.
#   scripts/fresh.sh [--release bookworm|trixie] [--with WHAT]... [--only demo|test|soft-efa] [--prepare] [--twice] [--keep] [--work FOLDER]
#   --with rustup-nightly   a nightly toolchain with the sources of core, first on PATH, as rustup leaves it
#   --with libclang-cpp     clang's C++ library without libclang, which its name resembles
#   --with old-rust         the distribution's own, older rustc
#   --with no-apt           Rust and a compiler are there, apt is not: `make demo` alone
#   --twice                 `make test` a second time, with what the first has built
#   --only soft-efa         neither: scripts/soft-efa-matrix.sh over the distribution's own libfabric, by the target/release/ginlab of here
#                           (or $GINLAB); its matrix goes to FOLDER/soft-efa-RELEASE
#   --prepare               makes the root file system alone, which later calls take; those of soft-efa need no network then
# Needs root, debootstrap and a network. Nothing outside FOLDER (default: /var/tmp/ginlab-fresh) is changed; mounts end with the script.
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
with=()
while (($#)); do
    case $1 in
    --release) release=${2:?} && shift ;;
    --with) with+=("${2:?}") && shift ;;
    --only) only=${2:?} && shift ;;
    --work) work=${2:?} && shift ;;
    --twice) twice=yes ;;
    --prepare) prepare=yes ;;
    --keep) keep=yes ;;
    *) fail "$1? See the head of scripts/fresh.sh" ;;
    esac
    shift
done
case $release in bookworm | trixie) ;; *) fail "--release $release: bookworm or trixie" ;; esac
for what in "${with[@]}"; do
    case $what in
    rustup-nightly | libclang-cpp | old-rust) ;;
    no-apt) only=demo ;;
    *) fail "--with $what: one of rustup-nightly, libclang-cpp, old-rust, no-apt" ;;
    esac
done
has() { [[ " ${with[*]} " == *" $1 "* ]]; }
[[ $(id -u) == 0 ]] || fail 'not run: it needs root (chroot, mounts)'
command -v debootstrap >/dev/null || fail 'not run: no debootstrap (apt-get install debootstrap)'

# Mounts of a namespace of our own are gone with it, however this ends; so are the processes.
if [[ -z ${GINLAB_FRESH_INSIDE:-} ]]; then
    unshare --mount --pid --fork true 2>/dev/null || fail 'not run: no name spaces of mounts and processes can be made here'
    GINLAB_FRESH_INSIDE=yes exec unshare --mount --pid --fork --kill-child -- scripts/fresh.sh "${arguments[@]}"
fi
probe=$(mktemp -d)
for kind in proc sysfs tmpfs devpts; do
    mount -t "$kind" "$kind" "$probe" 2>/dev/null || fail "not run: no $kind can be mounted here"
    umount "$probe"
done
rmdir "$probe"

mirror=http://deb.debian.org/debian
name=$release$(printf -- '-%s' "${with[@]}")
# git and make: who clones and says `make demo` has them.
packages=git,make,ca-certificates
base=$work/$release.tar
if [[ $only == soft-efa ]]; then
    # Open MPI's library for a binary that was built with it.
    packages=libfabric1,libfabric-bin,iproute2,libopenmpi40
    if [[ $release == bookworm ]]; then packages=${packages/openmpi40/openmpi3}; fi
    name=soft-efa-$release-root-
    base=$work/soft-efa-$release.tar
fi
root=$work/${name%-}
log=$work/${name%-}.log
# The same unpacked, for what changes little in it: nobody writes to it.
lower=${base%.tar}-lower
mkdir -p "$work"
printf 'fresh.sh: %s, log %s\n' "${name%-}" "$log"
: >"$log"

# --- the root file system --------------------------------------------------------------------------------------------

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
mount --make-rprivate /

# --- a new root for each command, so that neither has what the other installed -----------------------------------------

remove_root() {
    umount -R "$root" 2>/dev/null || true
    umount "$root.top" 2>/dev/null || true
    rm -rf --one-file-system "$root" "$root.top"
}

# What is written lies in memory above what is unpacked once (the test over it takes 30 to 40 s of a core in place of 49, with what
# hide_slow_libraries hides). Fails where overlays cannot be mounted, as in some containers: then it is unpacked anew.
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

# As scripts/hide-slow-libraries.sh has it for the other tests, where it has been run: what each process that loads libfabric would pay for.
hide_slow_libraries() {
    local name path
    mount --bind /dev/null "$root/proc/kallsyms" || true
    for name in libpsm_infinipath.so.1 libpsm2.so.2; do
        path=$(realpath "$root"/usr/lib/*/"$name" 2>/dev/null) || continue
        # A link that is absolute would lead out of it.
        if [[ $path == "$(realpath "$root")"/* && -r $work/../hidden/$name ]]; then mount --bind "$work/../hidden/$name" "$path" || true; fi
    done
}

make_root() {
    local device variable
    remove_root
    mkdir -p "$root"
    # A mount of its own: ip netns changes how / is mounted.
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

    # How this machine reaches the registries: its certificates and its proxies, nothing else of its environment.
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
update() { inside apt-get update -q >>"$log" 2>&1 || fail "apt-get update failed, see $log"; }
inside() { chroot "$root" /usr/bin/env -i "${environment[@]}" "$@"; }
install() { inside env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@" >>"$log" 2>&1; }

# --- what has misled setup before --------------------------------------------------------------------------------------

dress() {
    local say_what toolchain tool
    if has libclang-cpp; then
        install "$(inside apt-cache search --names-only '^libclang-cpp[0-9]+$' | awk '{print $1}' | sort -V | head -n 1)"
        say_what=$(inside find /usr/lib -name 'libclang*.so*')
        printf 'fresh.sh: there is %s\n' "${say_what//$'\n'/ }"
    fi
    if has old-rust; then
        install rustc cargo || fail "no old Rust, see $log"
    fi
    if has rustup-nightly; then
        # A rustup's folder with one nightly in it. Its sources of core are of the newest release that the distribution has: enough to
        # be taken for a kernel toolchain by whoever does not ask for the release.
        toolchain=$(compgen -G "${RUSTUP_HOME:-$HOME/.rustup}/toolchains/nightly-*" | head -n 1) || true
        [[ -n $toolchain ]] || fail 'not run: --with rustup-nightly wants a nightly toolchain of rustup on this machine (rustup toolchain install nightly)'
        install gcc libc6-dev
        mkdir -p "$root/root/.rustup/toolchains" "$root/root/.cargo/bin"
        cp -a "$toolchain" "$root/root/.rustup/toolchains/"
        toolchain=/root/.rustup/toolchains/$(basename "$toolchain")
        if [[ ! -e $root$toolchain/lib/rustlib/src/rust/library/core/Cargo.toml ]]; then
            mkdir -p "$root/tmp/src" && chmod 777 "$root/tmp/src"
            inside sh -c 'cd /tmp/src && apt-get download -q rust-web-src && dpkg -x rust-web-src_*.deb .' >>"$log" 2>&1
            mkdir -p "$root$toolchain/lib/rustlib/src/rust"
            cp -a "$(dirname "$(find "$root/tmp/src/usr/src" -maxdepth 3 -path '*/library/Cargo.lock')")" "$root$toolchain/lib/rustlib/src/rust/library"
        fi
        for tool in cargo rustc rustdoc; do ln -s "$toolchain/bin/$tool" "$root/root/.cargo/bin/$tool"; done
        environment=("${environment[@]/#PATH=/PATH=/root/.cargo/bin:}")
        printf 'fresh.sh: first on PATH is %s\n' "$(inside rustc --version)"
    fi
    if has no-apt; then
        install gcc libc6-dev rustc-web cargo-web
        rm -f "$root"/usr/bin/apt-get "$root"/usr/bin/apt
    fi
    git clone -q --no-hardlinks . "$root/root/ginlab"
}

# --- the two commands ----------------------------------------------------------------------------------------------------

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
    hide_slow_libraries
    mkdir -p "$root/root/ginlab"
    # Of a test run the cards are in cargo's folder deps.
    cards=${ginlab%/*}/deps/libsoft_efa.so
    [[ -f $cards ]] || cards=${ginlab%/*}/libsoft_efa.so
    cp -r scripts "$ginlab" "$cards" "$root/root/ginlab/"
    environment+=("SHORT=${SHORT:-0}")
    # shellcheck disable=SC2016  # dpkg's own format
    say_time "soft-efa, $(inside dpkg-query -W -f '${Version}' libfabric1)" scripts/soft-efa-matrix.sh ./ginlab /root/matrix
    mkdir -p "$work/soft-efa-$release"
    cp "$root"/root/matrix/* "$work/soft-efa-$release/" 2>/dev/null || fail "no matrix, see $log"
    cat "$work/soft-efa-$release/matrix.txt"
fi
for command in demo test; do
    if [[ -n $only && $only != "$command" ]]; then continue; fi
    make_root
    update
    dress
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
