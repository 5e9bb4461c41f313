//! Compiles kernels/ to PTX and hands the paths of both modules to the host as `GINLAB_PTX` and `GINLAB_PTX_BULK`; notes commit
//! and compiler for `--version`.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    commit();
    rustc();
    #[cfg(feature = "ptx")]
    ptx();
}

/// `GINLAB_COMMIT`: the commit that is built, `-dirty` when tracked files differ. Results name it. Where the sources come
/// without git, as into an image, the environment may name it.
fn commit() {
    println!("cargo::rerun-if-env-changed=GINLAB_COMMIT");
    if let Some(given) = std::env::var("GINLAB_COMMIT").ok().filter(|commit| !commit.trim().is_empty()) {
        println!("cargo::rustc-env=GINLAB_COMMIT={}", given.trim());
        return;
    }
    for path in [".git/HEAD", ".git/index"] {
        if std::path::Path::new(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    let output = Command::new("git").args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]).output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    println!("cargo::rustc-env=GINLAB_COMMIT={}", if text.trim().is_empty() { "unknown" } else { text.trim() });
}

/// `GINLAB_RUSTC`: the version of the compiler of the host code.
fn rustc() {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(compiler).arg("--version").output().ok().filter(|output| output.status.success());
    if let Some(output) = output {
        let text = String::from_utf8_lossy(&output.stdout);
        let version = text.trim();
        println!("cargo::rustc-env=GINLAB_RUSTC={}", version.strip_prefix("rustc ").unwrap_or(version));
    }
}

#[cfg(feature = "ptx")]
fn ptx() {
    println!("cargo::rerun-if-env-changed=GINLAB_ARCH");
    let arch = std::env::var("GINLAB_ARCH").unwrap_or_else(|_| "sm_80".into());
    let builder = || cuda_builder::CudaBuilder::new("kernels").watch("crates/cuda_std").watch("crates/cuda_std_macros");
    // Bulk stores need compute capability 9.0: a module of their own, so that everything else runs on older GPUs.
    let built = [builder().arch(&arch).build(), builder().arch("sm_90").isa(80).feature("bulk").build()];
    for (variable, built) in ["GINLAB_PTX", "GINLAB_PTX_BULK"].into_iter().zip(built) {
        match built {
            Ok(path) => println!("cargo::rustc-env={variable}={}", path.display()),
            Err(error) => {
                eprintln!("{error}");
                std::process::exit(1);
            }
        }
    }
    println!("cargo::rustc-env=GINLAB_PTX_ARCH={arch}");
    // The test that holds the PTX against a snapshot wants to know who wrote it.
    let version = cuda_builder::Toolchain::find().map(|toolchain| toolchain.version()).unwrap_or_default();
    println!("cargo::rustc-env=GINLAB_PTX_RUSTC={version}");
}
