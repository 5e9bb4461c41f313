# shellcheck shell=bash
# Selects the Rust that builds ginlab and the one that compiles its kernels. Sourced from the repository's root by
# setup.sh, build.sh, test.sh and others; crates/cuda_builder searches the same places for the kernels' compiler.

# The oldest Rust that builds the workspace.
RUST_MIN=$(awk -F '"' '/^rust-version/ {print $2}' Cargo.toml).0
# The release that compiles the kernels to PTX.
KERNEL_RUST=$(<kernels/rustc-version)

have() { command -v "$1" >/dev/null 2>&1; }
at_least() { printf '%s\n%s\n' "$2" "$1" | sort -V -C; }

# A new rustup is not on PATH yet, and Ubuntu does not add versioned toolchains.
add_rust_paths() {
    local dir
    for dir in "${CARGO_HOME:-$HOME/.cargo}/bin" /usr/lib/rust-1.*/bin; do
        if [[ -d $dir && :$PATH: != *:$dir:* ]]; then PATH=$PATH:$dir; fi
    done
    hash -r
}
add_rust_paths

# Prints the release of a compiler or cargo, as 1.96.0 or 1.97.0-nightly. Fails for a rustup proxy without a toolchain.
release_of() {
    local release
    release=$("$1" --version 2>/dev/null | awk '{print $2}') && [[ -n $release ]] && echo "$release"
}
new_enough() {
    local release
    release=$(release_of "$1") && at_least "${release%%-*}" "$RUST_MIN"
}
host_cargo() { have cargo && have rustc && new_enough cargo && new_enough rustc; }

# Prints the compilers that have the sources of `core` and a cargo in the same directory, one path per line.
kernel_compilers() {
    local rustc sysroot
    for rustc in /usr/bin/rustc /usr/lib/*/bin/rustc "${RUSTUP_HOME:-$HOME/.rustup}"/toolchains/*/bin/rustc; do
        if [[ -x $rustc && -x ${rustc%rustc}cargo ]] && sysroot=$("$rustc" --print sysroot 2>/dev/null) &&
            [[ -f $sysroot/lib/rustlib/src/rust/library/core/Cargo.toml ]]; then
            echo "$rustc"
        fi
    done
}
# Prints the kernels' compiler; fails if there is none.
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

# choose_kernel_compiler any|project: sets kernel_features for cargo. If the kernels' compiler is missing, `any` selects
# another one through GINLAB_KERNEL_RUSTC, which the build and every result report; without any, only the emulated
# device is built. `project` accepts no other compiler: if no kernel runs on a GPU, a nightly that cannot compile them
# must not fail the build.
choose_kernel_compiler() {
    local rustc release which=${1:?any or project}
    # shellcheck disable=SC2034  # read by who sources this
    kernel_features=()
    if [[ -n ${GINLAB_KERNEL_RUSTC:-} ]] || kernel_rustc >/dev/null; then return; fi
    while read -r rustc; do
        release=$(release_of "$rustc")
        if [[ $which == any ]] && at_least "${release%%-*}" "$RUST_MIN"; then
            export GINLAB_KERNEL_RUSTC=$rustc
            echo "kernels: no rustc $KERNEL_RUST here; using $rustc ($release) through GINLAB_KERNEL_RUSTC" >&2
            return
        fi
    done < <(kernel_compilers)
    # shellcheck disable=SC2034
    kernel_features=(--no-default-features)
    echo "kernels: no rustc $KERNEL_RUST with the sources of core here; building without PTX, only for the emulated device (make build installs it)" >&2
}
