# shellcheck shell=bash
# Which Rust builds ginlab, and which one compiles its kernels. Sourced from the repository's root by setup.sh, build.sh and
# test.sh, so that they decide alike; crates/cuda_builder looks for the kernels' compiler at the same places.

# The oldest Rust that builds the workspace.
RUST_MIN=$(awk -F '"' '/^rust-version/ {print $2}' Cargo.toml).0
# The one release that compiles the kernels to PTX.
KERNEL_RUST=$(<kernels/rustc-version)

have() { command -v "$1" >/dev/null 2>&1; }
at_least() { printf '%s\n%s\n' "$2" "$1" | sort -V -C; }

# A rustup that was installed moments ago is not on PATH yet; Ubuntu keeps versioned toolchains off it.
add_rust_paths() {
    local dir
    for dir in "${CARGO_HOME:-$HOME/.cargo}/bin" /usr/lib/rust-1.*/bin; do
        if [[ -d $dir && :$PATH: != *:$dir:* ]]; then PATH=$PATH:$dir; fi
    done
    hash -r
}
add_rust_paths

# The release of a compiler or cargo, as 1.96.0 or 1.97.0-nightly. A rustup proxy without a toolchain fails, as it should.
release_of() {
    local release
    release=$("$1" --version 2>/dev/null | awk '{print $2}') && [[ -n $release ]] && echo "$release"
}
new_enough() {
    local release
    release=$(release_of "$1") && at_least "${release%%-*}" "$RUST_MIN"
}
host_cargo() { have cargo && have rustc && new_enough cargo && new_enough rustc; }

# The compilers that have the sources of `core` and a cargo beside them, one path a line.
kernel_compilers() {
    local rustc sysroot
    for rustc in /usr/bin/rustc /usr/lib/*/bin/rustc "${RUSTUP_HOME:-$HOME/.rustup}"/toolchains/*/bin/rustc; do
        if [[ -x $rustc && -x ${rustc%rustc}cargo ]] && sysroot=$("$rustc" --print sysroot 2>/dev/null) &&
            [[ -f $sysroot/lib/rustlib/src/rust/library/core/Cargo.toml ]]; then
            echo "$rustc"
        fi
    done
}
# The kernels' compiler; fails where it is not.
kernel_rustc() {
    local rustc
    while read -r rustc; do
        if [[ $(release_of "$rustc") == "$KERNEL_RUST" ]]; then
            echo "$rustc"
            return
        fi
    done < <(kernel_compilers)
    return 1
}

# Sets kernel_features for cargo, and GINLAB_KERNEL_RUSTC where the kernels' compiler is not to be had: with another one the
# build and every result say so; without any there is the emulated device alone. With `project` in place of `any` no other one is taken: where
# no kernel will run on a GPU, what another compiler may not take (a nightly of some other day) is no reason to fail.
choose_kernel_compiler() {
    local rustc release which=${1:?any or project}
    # shellcheck disable=SC2034  # read by who sources this
    kernel_features=()
    if [[ -n ${GINLAB_KERNEL_RUSTC:-} ]] || kernel_rustc >/dev/null; then return; fi
    while read -r rustc; do
        release=$(release_of "$rustc")
        if [[ $which == any ]] && at_least "${release%%-*}" "$RUST_MIN"; then
            export GINLAB_KERNEL_RUSTC=$rustc
            echo "kernels: no rustc $KERNEL_RUST here; using $rustc ($release) by GINLAB_KERNEL_RUSTC" >&2
            return
        fi
    done < <(kernel_compilers)
    # shellcheck disable=SC2034
    kernel_features=(--no-default-features)
    echo "kernels: no rustc $KERNEL_RUST with the sources of core here; building without PTX, for the emulated device alone (make build brings it)" >&2
}
