//! Compiles the kernel that copies (kernels/src/mover.rs) to PTX, for src/mover/driver.rs.

use cuda_builder::{CudaBuilder, Toolchain};
use std::process::ExitCode;

/// From here to the kernels.
const TOP: &str = "../..";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    if !cfg!(feature = "ptx") {
        return ExitCode::SUCCESS;
    }
    match ptx() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn ptx() -> Result<(), String> {
    let file = format!("{TOP}/kernels/rustc-version");
    println!("cargo::rerun-if-changed={file}");
    let release = std::fs::read_to_string(&file).map_err(|error| format!("{file}: {error}"))?;
    let toolchain = Toolchain::find(release.trim()).map_err(|error| error.to_string())?;
    let builder = CudaBuilder::new(format!("{TOP}/kernels"), toolchain).feature("mover");
    let builder = ["efa_queue", "cuda_std", "cuda_std_macros", "payload_pattern"]
        .iter()
        .fold(builder, |builder, name| builder.watch(format!("{TOP}/crates/{name}")));
    let path = builder.build().map_err(|error| error.to_string())?;
    println!("cargo::rustc-env=GINLAB_MOVER_PTX={}", path.display());
    Ok(())
}
