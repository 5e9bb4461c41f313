//! Compiles the kernel that copies (kernels/src/mover.rs) to PTX for src/mover/driver.rs. The file is empty if the
//! kernel compiler is not available.
//!
//! The kernel has no cargo feature. Cargo keeps only one library of this name, so a different set of features would
//! rebuild it and all tests that load it.

use cuda_builder::{CudaBuilder, Toolchain, release_in};
use std::path::Path;
use std::process::ExitCode;

/// Path from this package to the top of the repository.
const TOP: &str = "../..";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    match ptx() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn ptx() -> Result<(), String> {
    let kernels = Path::new(TOP).join("kernels");
    let release = release_in(&kernels.join("rustc-version")).map_err(|error| error.to_string())?;
    println!("cargo::rerun-if-env-changed=GINLAB_KERNEL_RUSTC");
    let made = Path::new(&std::env::var("OUT_DIR").unwrap_or_default()).join("kernels_mover.ptx");
    let Ok(toolchain) = Toolchain::find(&release) else {
        return std::fs::write(&made, "").map_err(|error| format!("{}: {error}", made.display()));
    };
    let builder = CudaBuilder::new(kernels, toolchain).feature("mover");
    let builder = ["efa_queue", "cuda_std", "cuda_std_macros", "payload_pattern"]
        .iter()
        .fold(builder, |builder, name| builder.watch(format!("{TOP}/crates/{name}")));
    builder.build().map(drop).map_err(|error| error.to_string())
}
