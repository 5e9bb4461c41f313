#!/usr/bin/env bash
# Builds the Dockerfile's stages `builder` and `laptop` without pulling images, on a base made of Debian packages. Then
# runs `make demo` in the builder, and the command of the image.
#
#   scripts/image-lab.sh [BASE.tar]     root file system of Debian 12 [default: made with debootstrap]
#
# Needs root, buildah and a network for apt. Images and containers are in a temporary directory, which is removed. Exit
# codes: 0 ok, 1 failed, 77 skipped with the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
skip() { printf 'image-lab.sh: skipped: %s\n' "$1" >&2; exit 77; }
[[ $(id -u) == 0 ]] || skip 'needs root'
command -v buildah >/dev/null || skip 'no buildah here: apt-get install buildah'
work=$(mktemp -d /var/tmp/ginlab-image.XXXXXX)
export TMPDIR=$work
in_storage=(--root "$work/storage" --runroot "$work/run" --storage-driver vfs)
run() { buildah "${in_storage[@]}" "$@"; }
cleanup() {
    run rm --all >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT
base=${1:-}
if [[ -z $base ]]; then
    command -v debootstrap >/dev/null || skip 'no debootstrap here, and no BASE.tar given'
    # Includes Debian's security updates, which have the kernels' compiler.
    scripts/fresh.sh --prepare --work "$work/base" >/dev/null
    base=$work/base/bookworm.tar
fi
container=$(run from scratch)
run add -q "$container" "$base" / >/dev/null
run config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
# This machine's certificates, for its access to the package registries.
run copy -q "$container" /etc/ssl/certs/ca-certificates.crt /etc/ssl/host.crt >/dev/null
for variable in SSL_CERT_FILE CARGO_HTTP_CAINFO CURL_CA_BUNDLE; do
    run config --env "$variable=/etc/ssl/host.crt" "$container"
done
run commit -q --rm "$container" localhost/debian:bookworm >/dev/null
commit=$(git rev-parse HEAD)
# Build outputs are kept outside the images, because each layer copies all files. The context is a copy as well, so that
# the second build can reuse the first one's layers while files here are edited.
mkdir "$work/target" "$work/context"
tar --exclude-from=.dockerignore -cf - . | tar -C "$work/context" -xf -
build() { # STAGE
    run build --isolation chroot --network host --pull-never --target "$1" --tag "localhost/ginlab:$1" --volume "$work/target:/src/target" \
        --build-arg DEBIAN=localhost/debian:bookworm --build-arg GINLAB_COMMIT="$commit" --layers "$work/context"
}
build builder
build laptop
printf '== the image laptop\n'
container=$(run from localhost/ginlab:laptop)
run run --isolation chroot "$container" -- ginlab --version
run run --isolation chroot "$container" -- ginlab doctor
run run --isolation chroot "$container" -- ginlab proxy --np 2 --rails 1,4 -b 4K -e 4M -f 32 --mode quiet,nbi --check --no-header
run rm "$container" >/dev/null
printf '== make demo in the builder\n'
container=$(run from localhost/ginlab:builder)
run run --isolation chroot --volume "$work/target:/src/target" "$container" -- make demo
run rm "$container" >/dev/null
run images
