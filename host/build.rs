//! Records commit and compiler for `--version` and the headers of results.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    commit();
    rustc();
}

/// Sets `GINLAB_COMMIT`, for the headers of results: the commit that is built, with `-dirty` if tracked files differ.
/// If the sources come without git, as in a container image, the environment can specify it.
fn commit() {
    println!("cargo::rerun-if-env-changed=GINLAB_COMMIT");
    if let Some(given) = std::env::var("GINLAB_COMMIT").ok().filter(|commit| !commit.trim().is_empty()) {
        println!("cargo::rustc-env=GINLAB_COMMIT={}", given.trim());
        return;
    }
    // Includes the sources, because the build of an edited file does not correspond to the commit.
    for name in [".git/HEAD", ".git/index", "Cargo.toml", "crates", "experiments", "host", "kernels"] {
        let path = format!("../{name}");
        if std::path::Path::new(&path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["describe", "--always", "--abbrev=12", "--exclude=*"]).filter(|commit| !commit.is_empty());
    // `describe --dirty` writes the index of a new clone. The index then appears changed, so that all dependents of the
    // commit would be compiled twice.
    let status = git(&["--no-optional-locks", "status", "--porcelain", "--untracked-files=no"]);
    let dirty = if status.is_some_and(|files| !files.is_empty()) { "-dirty" } else { "" };
    println!("cargo::rustc-env=GINLAB_COMMIT={}", commit.map_or("unknown".into(), |commit| commit + dirty));
}

/// Sets `GINLAB_RUSTC`: the version of the compiler of the host code, and the profile if it is not the release profile.
fn rustc() {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler).arg("--version").output().ok().filter(|output| output.status.success());
    // Cargo does not pass the name of the profile to a build script. It is part of the path
    // target/PROFILE/build/NAME/out.
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    let folder = std::path::Path::new(&out).ancestors().nth(3).and_then(|folder| folder.file_name()?.to_str());
    let profile = folder.filter(|name| *name != "release").map(|name| format!(", profile {name}")).unwrap_or_default();
    if let Some(output) = output {
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.trim();
        println!("cargo::rustc-env=GINLAB_RUSTC={}{profile}", version.strip_prefix("rustc ").unwrap_or(version));
    }
}
