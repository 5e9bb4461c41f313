//! Compiles kernels/ to PTX and hands the modules to the host in a table (`ptx.rs` in `OUT_DIR`), builds the cards in software
//! (`GINLAB_SOFT_EFA_FILE`), notes commit and compiler for `--version`.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    commit();
    rustc();
    // Side by side with the kernels.
    let cards = std::thread::spawn(soft_efa);
    #[cfg(feature = "ptx")]
    ptx();
    match cards.join() {
        Ok(Ok(path)) => println!("cargo::rustc-env=GINLAB_SOFT_EFA_FILE={}", path.display()),
        Ok(Err(error)) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// Builds the cards in software, a shared object that the command carries: one build for all profiles and features, beside
/// theirs. Cargo sees by itself whether there is anything to do.
fn soft_efa() -> Result<std::path::PathBuf, String> {
    for krate in ["crates/soft_efa", "crates/card_model"] {
        for part in ["Cargo.toml", "src"] {
            println!("cargo::rerun-if-changed=../{krate}/{part}");
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

/// `GINLAB_COMMIT`: the commit that is built, `-dirty` when tracked files differ. Results name it. Where the sources come
/// without git, as into an image, the environment may name it.
fn commit() {
    println!("cargo::rerun-if-env-changed=GINLAB_COMMIT");
    if let Some(given) = std::env::var("GINLAB_COMMIT").ok().filter(|commit| !commit.trim().is_empty()) {
        println!("cargo::rustc-env=GINLAB_COMMIT={}", given.trim());
        return;
    }
    for path in ["../.git/HEAD", "../.git/index"] {
        if std::path::Path::new(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["describe", "--always", "--abbrev=12", "--exclude=*"]).filter(|commit| !commit.is_empty());
    // `describe --dirty` writes the index of a new clone, which then looks changed: all that knows the commit was compiled twice
    // (104 s of `make test` in a bare Debian 12 on two cores).
    let status = git(&["--no-optional-locks", "status", "--porcelain", "--untracked-files=no"]);
    let dirty = if status.is_some_and(|files| !files.is_empty()) { "-dirty" } else { "" };
    println!("cargo::rustc-env=GINLAB_COMMIT={}", commit.map_or("unknown".into(), |commit| commit + dirty));
}

/// `GINLAB_RUSTC`: the version of the compiler of the host code, and the profile where it is not the one for measuring.
fn rustc() {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler).arg("--version").output().ok().filter(|output| output.status.success());
    // Cargo tells a script no name of a profile; its folder has it: target/PROFILE/build/NAME/out.
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    let folder = std::path::Path::new(&out).ancestors().nth(3).and_then(|folder| folder.file_name()?.to_str());
    let profile = folder.filter(|name| *name != "release").map(|name| format!(", profile {name}")).unwrap_or_default();
    if let Some(output) = output {
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.trim();
        println!("cargo::rustc-env=GINLAB_RUSTC={}{profile}", version.strip_prefix("rustc ").unwrap_or(version));
    }
}

#[cfg(feature = "ptx")]
fn ptx() {
    println!("cargo::rerun-if-env-changed=GINLAB_ARCH");
    let arch = std::env::var("GINLAB_ARCH").unwrap_or_else(|_| "sm_80".into());
    let toolchain = match kernel_compiler() {
        Ok(toolchain) => toolchain,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    println!("cargo::rustc-env=GINLAB_PTX_ARCH={arch}");
    println!(
        "cargo::rustc-env=GINLAB_PTX_RUSTC={}{}",
        toolchain.version,
        if toolchain.is_the_projects { "" } else { " (not the project's)" }
    );
    let module = |name: &str| {
        let builder = cuda_builder::CudaBuilder::new("../kernels", toolchain.clone()).feature(name);
        let builder = builder.watch("../crates/cuda_std").watch("../crates/cuda_std_macros");
        if name == "bulk" { builder.arch("sm_90").isa(80) } else { builder.arch(&arch) }
    };
    // Kernels that are used together, so that the driver compiles no others for who runs them, and an edit compiles few. Bulk stores
    // need compute capability 9.0: without them everything else runs on older GPUs.
    let names = ["puts", "queue", "ipc", "shmem", "collective", "jacobi", "bulk"];
    let table = cuda_builder::CudaBuilder::build_all(names.map(module).into())
        .map_err(|error| error.to_string())
        .and_then(|paths| {
            let entries = names.iter().zip(&paths).map(|(name, path)| format!("({name:?}, include_str!({path:?})),\n"));
            let file = std::path::Path::new(&std::env::var("OUT_DIR").unwrap_or_default()).join("ptx.rs");
            std::fs::write(&file, format!("[\n{}]\n", entries.collect::<String>()))
                .map_err(|error| format!("{}: {error}", file.display()))
        });
    if let Err(error) = table {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

/// The compiler that kernels/rustc-version names, or the one that was asked for instead.
#[cfg(feature = "ptx")]
fn kernel_compiler() -> Result<cuda_builder::Toolchain, String> {
    let file = "../kernels/rustc-version";
    println!("cargo::rerun-if-changed={file}");
    let release = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let toolchain = cuda_builder::Toolchain::find(release.trim()).map_err(|error| error.to_string())?;
    if !toolchain.is_the_projects {
        println!(
            "cargo::warning=GINLAB_KERNEL_RUSTC: the kernels are compiled by {toolchain}, the project's compiler is {}; results say so",
            release.trim()
        );
    }
    Ok(toolchain)
}
