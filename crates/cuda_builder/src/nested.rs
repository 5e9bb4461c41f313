//! Runs cargo within a build script, which another cargo runs.

use std::env;
use std::path::Path;
use std::process::Command;

/// Returns a command that runs cargo for a separate build within a build script. It does not inherit the outer cargo's
/// settings, which apply to the outer build only. Clippy also uses such variables to pass its options to the compiler.
pub fn nested(cargo: &Path) -> Command {
    let mut command = Command::new(cargo);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_of_the_outer_build) {
            command.env_remove(name);
        }
    }
    command
}

/// Returns whether a variable configures compiler or cargo for the outer build. Variables that configure the access to
/// registries do not count, because the sources of `core` also have dependencies.
fn is_of_the_outer_build(name: &str) -> bool {
    let begins = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    begins(&["CARGO_", "RUSTC", "RUSTDOC", "RUSTFLAGS", "RUSTUP_TOOLCHAIN", "CLIPPY_", "SYSROOT"])
        && !begins(&["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_cargo_uses_registry_of_outer_cargo() {
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
