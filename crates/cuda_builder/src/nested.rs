//! A cargo within a build script, which another cargo runs.

use std::env;
use std::path::Path;
use std::process::Command;

/// A cargo for a build of its own within a build script: the outer cargo's settings are for the outer build, and the nested one
/// starts from its own. Clippy, too, speaks to the compiler by such variables.
pub fn nested(cargo: &Path) -> Command {
    let mut command = Command::new(cargo);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_of_the_outer_build) {
            command.env_remove(name);
        }
    }
    command
}

/// Whether a variable tells a compiler or cargo what the outer build wants of it. How cargo reaches its registry is not of
/// that kind: the sources of `core` have dependencies, too.
fn is_of_the_outer_build(name: &str) -> bool {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    begins(&["CARGO_", "RUSTC", "RUSTDOC", "RUSTFLAGS", "RUSTUP_TOOLCHAIN", "CLIPPY_", "SYSROOT"])
        && !begins(&["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nested_cargo_reaches_the_registry_as_the_outer_one_does() {
        for name in
            ["CARGO_HOME", "CARGO_HTTP_CAINFO", "CARGO_NET_OFFLINE", "CARGO_REGISTRIES_X_INDEX", "https_proxy", "PATH"]
        {
            assert!(!is_of_the_outer_build(name), "{name}");
        }
        for name in ["CARGO_TARGET_DIR", "CARGO_PKG_NAME", "RUSTC_WRAPPER", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
            assert!(is_of_the_outer_build(name), "{name}");
        }
    }
}
