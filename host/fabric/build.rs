//! Builds the cards in software, which the library carries (`GINLAB_SOFT_EFA_FILE`).

use std::process::ExitCode;

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    match soft_efa() {
        Ok(path) => {
            println!("cargo::rustc-env=GINLAB_SOFT_EFA_FILE={}", path.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the cards in software, a shared object that the command carries: one build for all profiles and features, beside
/// theirs. Cargo sees by itself whether there is anything to do.
fn soft_efa() -> Result<std::path::PathBuf, String> {
    for krate in ["crates/soft_efa", "crates/card_model"] {
        for part in ["Cargo.toml", "src"] {
            println!("cargo::rerun-if-changed=../../{krate}/{part}");
        }
    }
    let variable = |name| std::env::var(name).map_err(|error| format!("{name}: {error}"));
    let (cargo, out, target) = (variable("CARGO")?, variable("OUT_DIR")?, variable("TARGET")?);
    // Of a package's build folder target/PROFILE/build/NAME/out.
    let folder = std::path::Path::new(&out).ancestors().nth(4).ok_or("OUT_DIR is no build folder")?.join("soft_efa");
    let mut command = cuda_builder::nested(cargo.as_ref());
    command.args(["build", "--quiet", "--release", "--lib", "--package", "soft_efa", "--target-dir"]).arg(&folder);
    if variable("HOST")? != target {
        command.args(["--target", &target]);
    }
    for (name, value) in [("DEBUG", "false"), ("STRIP", "symbols"), ("INCREMENTAL", "false"), ("PANIC", "abort")] {
        command.env(format!("CARGO_PROFILE_RELEASE_{name}"), value);
    }
    let output = command.output().map_err(|error| format!("{cargo}: {error}"))?;
    if !output.status.success() {
        return Err(format!("building crates/soft_efa failed:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    let folder = if variable("HOST")? == target { folder } else { folder.join(target) };
    Ok(folder.join("release/libsoft_efa.so"))
}
