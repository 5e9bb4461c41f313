#!/usr/bin/env bash
# Packs the program, launch files, licences and checksums into target/dist/ginlab-VERSION-ARCH-linux.tar.gz.
#
#   scripts/dist.sh                  build and pack
#   scripts/dist.sh --from DIR       pack the programs of DIR, such as target/debug, and build nothing
#   scripts/dist.sh --out DIR        write to DIR instead of target/dist
#   scripts/dist.sh --accept SONAME  accept that the program needs this library, such as the libmpi.so.40 of a program
#                                    with MPI; may be repeated
#   scripts/dist.sh --wheel          also pack the Python package: target/dist/ginlab-VERSION-py3-none-manylinux_*.whl
#                                    (scripts/fresh.sh --only wheel installs it in a bare root file system)
#   scripts/dist.sh --in BASE.tar    also start the archive in a bare root file system, such as debootstrap makes; needs root
#
# The program loads libfabric and the GPU driver at start, so the archive works with and without them. The default build
# has no MPI: ranks use the tcp bootstrap, also under srun (for MPI: make build FEATURES=mpi, then --from target/release).
# A program without kernels for GPUs is refused. Exit codes: 0 ok, 1 failed, 2 usage.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fail() { printf 'dist.sh: %s\n' "$1" >&2; exit "${2:-1}"; }
base=
wheel=
from=
dist=${CARGO_TARGET_DIR:-target}/dist
accepted=()
while (($#)); do
    case $1 in
    --wheel) wheel=yes ;;
    --from)
        from=${2:-}
        for file in ginlab libnccl_ginlab.so libsoft_efa.so; do
            if [[ ! -f $from/$file ]]; then fail "--from ${from:-without a directory}: no $file; build it with scripts/build.sh" 2; fi
        done
        shift
        ;;
    --out)
        dist=${2:-}
        if [[ ! -d $dist ]]; then fail '--out: expected a directory' 2; fi
        shift
        ;;
    --accept)
        accepted+=("${2:?--accept: expected the name of a library}")
        shift
        ;;
    --in)
        base=${2:-}
        if [[ ! -f $base ]]; then fail '--in: expected the tar file of a root file system' 2; fi
        shift
        ;;
    *) fail "unknown argument $1; see the head of scripts/dist.sh" 2 ;;
    esac
    shift
done

if [[ -z $from ]]; then
    scripts/build.sh
    from=${CARGO_TARGET_DIR:-target}/release
fi
version=$(awk -F '"' '/^version/ {print $2; exit}' Cargo.toml)
name=ginlab-$version-$(uname -m)-linux
rm -rf "${dist:?}/$name"
mkdir -p "$dist/$name"
# Without the GPU's code, the program would measure the CPU on every GPU host.
if "$from/ginlab" --version | grep -q '^kernels by  *none'; then
    fail 'the program has no kernels for GPUs: rustc of kernels/rustc-version is missing; run scripts/setup.sh build, then repeat'
fi
for file in ginlab libnccl_ginlab.so libsoft_efa.so; do objcopy --strip-debug "$from/$file" "$dist/$name/$file"; done
# The program and the libraries that it loads from its own directory may only depend on the C library's own files.
needed=$(objdump -p "$dist/$name/ginlab" "$dist/$name"/*.so | awk '/NEEDED/ {print $2}' | sort -u)
for library in $needed; do
    case $library in
    libc.so.6 | libm.so.6 | libgcc_s.so.1 | libdl.so.2 | libpthread.so.0 | librt.so.1 | ld-linux-*) ;;
    *)
        if [[ " ${accepted[*]} " != *" $library "* ]]; then
            fail "the program needs $library, which a bare machine does not have (--accept $library)"
        fi
        ;;
    esac
done
glibc=$(objdump -T "$dist/$name/ginlab" "$dist/$name"/*.so | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
cp -r deploy LICENSE-APACHE LICENSE-MIT CHANGELOG.md "$dist/$name/"
mkdir "$dist/$name/docs"
cp docs/nccl.md docs/two-p5.md experiments/doctor/README.md "$dist/$name/docs/" && mv "$dist/$name/docs/README.md" "$dist/$name/docs/doctor.md"
(cd "$dist/$name" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$dist/SHA256SUMS"
mv "$dist/SHA256SUMS" "$dist/$name/"
stamp=$(git log -1 --format=%ct 2>/dev/null || date +%s)
tar -C "$dist" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$stamp" -czf "$dist/$name.tar.gz" "$name"
(cd "$dist" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
printf '%s: %s bytes, needs %s of glibc and %s\n' "$dist/$name.tar.gz" "$(stat -c %s "$dist/$name.tar.gz")" "${glibc#GLIBC_}" "$(tr '\n' ' ' <<<"$needed")"
if [[ -n $wheel ]]; then
    rm -f "$dist"/ginlab-*.whl
    python3 scripts/wheel.py --programs "$dist/$name" --glibc "${glibc#GLIBC_}" --out "$dist"
fi
[[ -n $base ]] || exit 0

scripts/bare.sh "$base" "$dist/$name.tar.gz" "$dist/$name.tar.gz.sha256" <<SCRIPT
sha256sum -c $name.tar.gz.sha256
tar -xzf $name.tar.gz
cd $name
sha256sum --quiet -c SHA256SUMS
./ginlab --version
./ginlab doctor --no-smoke --only memlock,toolchain,container --dev
./ginlab proxy -p null -b 64 -e 64 -n 200 -r 3 --no-header
./ginlab proxy -p model:p5 --np 2 --rails 1,4 -b 64K -e 64K -n 20 -r 3 --mode nbi --no-header
SCRIPT
