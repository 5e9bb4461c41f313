//! Which compiler builds the kernels.

use crate::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fmt, fs};

/// Environment variables that the choice depends on. (Not PATH: nothing is looked up there, and rustup changes it from one
/// cargo command to the next, each of which would compile the kernels again.)
pub(crate) const VARIABLES: [&str; 2] = ["GINLAB_KERNEL_RUSTC", "RUSTUP_HOME"];

/// A rustc with the sources of `core` beside it, and a cargo to drive it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// The compiler.
    pub rustc: PathBuf,
    /// The cargo that goes with it.
    pub cargo: PathBuf,
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.rustc.display())
    }
}

impl Toolchain {
    /// The first of these that has the sources of `core`: `$GINLAB_KERNEL_RUSTC`, the compiler of this build, each rustup
    /// toolchain, the distribution's `/usr/bin/rustc` (Debian's rustc-web with rust-web-src).
    ///
    /// # Errors
    /// [`Error::NoToolchain`] with the command that installs one.
    pub fn find() -> Result<Toolchain, Error> {
        Toolchain::find_among(&candidates())
    }

    /// The compiler's version and its LLVM's, which writes the PTX: `1.96.0, LLVM 22.1.2`. Empty when it does not say.
    pub fn version(&self) -> String {
        let output = Command::new(&self.rustc).arg("-vV").output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        match (value("release:"), value("LLVM version:")) {
            (Some(release), Some(llvm)) => format!("{release}, LLVM {llvm}"),
            (release, _) => release.unwrap_or_default().into(),
        }
    }

    fn find_among(candidates: &[PathBuf]) -> Result<Toolchain, Error> {
        let mut seen = String::new();
        for rustc in candidates {
            match usable(rustc) {
                Ok(toolchain) => return Ok(toolchain),
                Err(why) => seen.push_str(&format!("\n    {}: {why}", rustc.display())),
            }
        }
        Err(Error::NoToolchain(format!(
            "no Rust toolchain here can compile the kernels to PTX: none has the sources of `core`.\n  \
             Install one:         {}\n  \
             or with rustup:      rustup component add rust-src\n  \
             or build without:    cargo build --release --no-default-features   (emulated device only)\n  \
             Looked at:{}",
            "apt-get install rustc-web cargo-web rust-web-src   (Debian 12)",
            if seen.is_empty() { " nothing".into() } else { seen }
        )))
    }
}

fn candidates() -> Vec<PathBuf> {
    if let Some(chosen) = env::var_os("GINLAB_KERNEL_RUSTC") {
        return vec![chosen.into()];
    }
    let mut found: Vec<PathBuf> =
        env::var_os("RUSTC").into_iter().map(PathBuf::from).filter(|path| path.is_absolute()).collect();
    let rustup = env::var_os("RUSTUP_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".rustup")));
    if let Some(entries) = rustup.and_then(|home| fs::read_dir(home.join("toolchains")).ok()) {
        let mut compilers: Vec<PathBuf> = entries.flatten().map(|entry| entry.path().join("bin/rustc")).collect();
        compilers.sort();
        found.extend(compilers);
    }
    found.push("/usr/bin/rustc".into());
    found
}

fn usable(rustc: &Path) -> Result<Toolchain, String> {
    let output = Command::new(rustc).args(["--print", "sysroot"]).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err("does not run".into());
    }
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if !sysroot.join("lib/rustlib/src/rust/library/core/Cargo.toml").is_file() {
        return Err("no sources of core (component rust-src)".into());
    }
    let cargo = rustc.with_file_name("cargo");
    if !cargo.is_file() {
        return Err("no cargo beside it".into());
    }
    Ok(Toolchain { rustc: rustc.into(), cargo })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_toolchain_the_error_names_the_commands_and_where_it_looked() {
        let empty = env::temp_dir();
        let error = Toolchain::find_among(&["/nonexistent/rustc".into(), empty.join("none/rustc")]);
        let text = error.expect_err("there is none").to_string();
        for words in [
            "apt-get install rustc-web cargo-web rust-web-src",
            "rustup component add rust-src",
            "--no-default-features",
            "/nonexistent/rustc: No such file",
        ] {
            assert!(text.contains(words), "{words} is not in: {text}");
        }
    }

    #[test]
    fn a_compiler_without_the_sources_of_core_is_not_usable() {
        // It runs, and prints nothing that could be a sysroot.
        let why = usable(Path::new("/bin/true")).expect_err("not a compiler");
        assert!(why.contains("rust-src"), "{why}");
        assert_eq!(usable(Path::new("/bin/false")).expect_err("not a compiler"), "does not run");
    }
}
