//! Selection of the compiler that builds the kernels.

use crate::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fmt, fs};

/// Environment variable that specifies a compiler other than the project's.
const OTHER: &str = "GINLAB_KERNEL_RUSTC";

/// Environment variables that the choice depends on. PATH is not among them: it is not searched, and rustup changes it
/// from one cargo command to the next, each of which would recompile the kernels.
pub(crate) const VARIABLES: [&str; 2] = [OTHER, "RUSTUP_HOME"];

/// A rustc with the sources of `core`, and a matching cargo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    /// Path of the compiler.
    pub rustc: PathBuf,
    /// Path of the matching cargo.
    pub cargo: PathBuf,
    /// The release of the compiler and of its LLVM, which writes the PTX: `1.96.0, LLVM 22.1.8`.
    pub version: String,
    /// Whether this is the requested release. False only if `GINLAB_KERNEL_RUSTC` specifies another one.
    pub is_the_projects: bool,
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.rustc.display(), self.version)
    }
}

impl Toolchain {
    /// Finds the compiler of this release, such as `1.96.0`. Searches the distribution's `/usr/bin/rustc` (Debian's
    /// rustc-web with rust-web-src), `/usr/lib/rust-*/bin`, the rustup toolchains, and the compiler of this build.
    ///
    /// Other releases are ignored, including newer ones: two compilers write different PTX, and results must be
    /// comparable. Only `$GINLAB_KERNEL_RUSTC` can specify another one.
    ///
    /// # Errors
    /// Returns [`Error::NoToolchain`] with the command that installs one.
    pub fn find(release: &str) -> Result<Toolchain, Error> {
        match env::var_os(OTHER) {
            Some(named) => Toolchain::named(Path::new(&named), release),
            None => Toolchain::find_among(&candidates(), release),
        }
    }

    /// Returns the toolchain of a specified compiler: any release that has the sources of `core`.
    fn named(rustc: &Path, release: &str) -> Result<Toolchain, Error> {
        let mut toolchain =
            usable(rustc).map_err(|why| Error::NoToolchain(format!("{OTHER}={}: {why}", rustc.display())))?;
        toolchain.is_the_projects = is_release(&toolchain.version, release);
        Ok(toolchain)
    }

    fn find_among(candidates: &[PathBuf], release: &str) -> Result<Toolchain, Error> {
        let mut seen = String::new();
        for rustc in candidates {
            let why = match usable(rustc) {
                Ok(toolchain) if is_release(&toolchain.version, release) => return Ok(toolchain),
                Ok(toolchain) => {
                    format!("is {}; to use it nevertheless: {OTHER}={}", toolchain.version, rustc.display())
                }
                Err(why) => why,
            };
            seen.push_str(&format!("\n    {}: {why}", rustc.display()));
        }
        Err(Error::NoToolchain(format!(
            "no Rust {release} with the sources of `core` was found; only this release compiles the kernels to PTX.\n  \
             Install it:          {}\n  or with rustup:      rustup toolchain install {release} --component rust-src\n  \
             or build without:    cargo build --release --no-default-features   (emulated device only)\n  Searched:{}",
            "apt-get install rustc-web cargo-web rust-web-src   (Debian 12 and 13)",
            if seen.is_empty() { " nothing".into() } else { seen }
        )))
    }
}

/// Returns whether a version such as `1.96.0, LLVM 22.1.8` belongs to this release.
fn is_release(version: &str, release: &str) -> bool {
    version.split(',').next() == Some(release)
}

fn candidates() -> Vec<PathBuf> {
    let folders = |parent: PathBuf| {
        let entries = fs::read_dir(parent).ok().into_iter().flatten().flatten();
        let mut compilers: Vec<PathBuf> =
            entries.map(|entry| entry.path().join("bin/rustc")).filter(|rustc| rustc.is_file()).collect();
        compilers.sort();
        compilers
    };
    let rustup = env::var_os("RUSTUP_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".rustup")));
    let mut found = vec![PathBuf::from("/usr/bin/rustc")];
    found.extend(folders("/usr/lib".into()));
    found.extend(rustup.into_iter().flat_map(|home| folders(home.join("toolchains"))));
    found.extend(env::var_os("RUSTC").into_iter().map(PathBuf::from).filter(|path| path.is_absolute()));
    found
}

fn usable(rustc: &Path) -> Result<Toolchain, String> {
    let ask = |arguments: &[&str]| {
        let output = Command::new(rustc).args(arguments).output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err("cannot be run".to_owned());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let sysroot = PathBuf::from(ask(&["--print", "sysroot"])?.trim());
    let text = ask(&["-vV"])?;
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let version = match (value("release:"), value("LLVM version:")) {
        (Some(release), Some(llvm)) => format!("{release}, LLVM {llvm}"),
        _ => return Err("reports no release and LLVM version (rustc -vV)".into()),
    };
    if !sysroot.join("lib/rustlib/src/rust/library/core/Cargo.toml").is_file() {
        return Err(format!("{version} lacks the sources of core (component rust-src)"));
    }
    let cargo = rustc.with_file_name("cargo");
    if !cargo.is_file() {
        return Err("no cargo in the same directory".into());
    }
    Ok(Toolchain { rustc: rustc.into(), cargo, version, is_the_projects: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Creates a directory with a rustc that reports this release, a cargo, and the sources of `core`.
    fn pretend(parent: &Path, release: &str) -> PathBuf {
        let folder = parent.join(release);
        let sources = folder.join("lib/rustlib/src/rust/library/core");
        fs::create_dir_all(&sources).expect("a folder for the test");
        fs::write(sources.join("Cargo.toml"), "").expect("a file for the test");
        let bin = folder.join("bin");
        fs::create_dir_all(&bin).expect("a folder for the test");
        let script = format!(
            "#!/bin/sh\nif [ \"$1\" = --print ]; then echo '{}'; else printf 'release: {release}\\nLLVM version: 22.1.8\\n'; fi\n",
            folder.display()
        );
        for name in ["rustc", "cargo"] {
            let path = bin.join(name);
            fs::write(&path, &script).expect("a file for the test");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
        }
        bin.join("rustc")
    }

    #[test]
    fn missing_toolchain_error_names_commands_and_searched_paths() {
        let empty = env::temp_dir();
        let error = Toolchain::find_among(&["/nonexistent/rustc".into(), empty.join("none/rustc")], "1.96.0");
        let text = error.expect_err("there is none").to_string();
        for words in [
            "apt-get install rustc-web cargo-web rust-web-src",
            "rustup toolchain install 1.96.0 --component rust-src",
            "--no-default-features",
            "/nonexistent/rustc: No such file",
        ] {
            assert!(text.contains(words), "{words} is not in: {text}");
        }
    }

    #[test]
    fn only_project_release_is_selected_from_candidates() {
        let folder = env::temp_dir().join(format!("cuda_builder-{}", std::process::id()));
        let [older, own, newer] = ["1.95.0", "1.96.0", "1.97.0-nightly"].map(|release| pretend(&folder, release));
        for order in [[&older, &own, &newer], [&newer, &older, &own], [&own, &newer, &older]] {
            let found = Toolchain::find_among(&order.map(Clone::clone), "1.96.0").expect("it is among them");
            assert_eq!((&found.rustc, found.is_the_projects), (&own, true));
            assert_eq!(found.version, "1.96.0, LLVM 22.1.8");
        }
        let text = Toolchain::find_among(&[older, newer.clone()], "1.96.0").expect_err("it is not here").to_string();
        assert!(
            text.contains(&format!(
                "is 1.97.0-nightly, LLVM 22.1.8; to use it nevertheless: {OTHER}={}",
                newer.display()
            ))
        );
        // A compiler that is specified explicitly is accepted, and marked as not the project's.
        let named = Toolchain::named(&newer, "1.96.0").expect("it was named");
        assert_eq!((named.rustc, named.is_the_projects), (newer, false));
        assert!(Toolchain::named(&own, "1.96.0").expect("it was named").is_the_projects);
        let text = Toolchain::named(Path::new("/nonexistent"), "1.96.0").expect_err("no file").to_string();
        assert!(text.starts_with("GINLAB_KERNEL_RUSTC=/nonexistent: "), "{text}");
        fs::remove_dir_all(&folder).expect("the test's own folder");
    }

    #[test]
    fn programs_that_are_not_compilers_are_rejected() {
        // This program runs, but prints nothing.
        let why = usable(Path::new("/bin/true")).expect_err("not a compiler");
        assert!(why.contains("rustc -vV"), "{why}");
        assert_eq!(usable(Path::new("/bin/false")).expect_err("not a compiler"), "cannot be run");
    }
}
