//! Compiles the kernels to PTX and writes a table of the modules to `ptx.rs` in `OUT_DIR`.

use cuda_builder::{CudaBuilder, Toolchain, release_in};
use std::path::Path;
use std::process::ExitCode;

/// Modules of kernels that are used together (kernels/src/lib.rs), so that the driver compiles only the kernels in use,
/// and an edit recompiles few. Bulk stores need compute capability 9.0; in a separate module, they do not prevent the
/// others from running on older GPUs.
const MODULES: [&str; 15] = [
    "puts",
    "direct",
    "queue",
    "ipc",
    "shmem",
    "shmem_exchange",
    "signals",
    "checks",
    "collective_words",
    "collective_messages",
    "collective_puts",
    "jacobi",
    "moe",
    "litmus",
    "bulk",
];

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        // Tests start the program some 1500 times. A position-independent executable would need 104000 relocations per
        // start, which take 1 ms of 6 ms and cause 430 of 920 page faults.
        println!("cargo::rustc-link-arg-bins=-no-pie");
        println!("cargo::rustc-link-arg-tests=-no-pie");
    }
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
    println!("cargo::rerun-if-env-changed=GINLAB_ARCH");
    let arch = std::env::var("GINLAB_ARCH").unwrap_or_else(|_| "sm_80".into());
    let toolchain = kernel_compiler()?;
    let modules = modules()?;
    println!("cargo::rustc-env=GINLAB_PTX_ARCH={arch}");
    println!(
        "cargo::rustc-env=GINLAB_PTX_RUSTC={}{}{}",
        toolchain.version,
        if toolchain.is_the_projects { "" } else { " (not the project's)" },
        if modules.len() == MODULES.len() { String::new() } else { format!(" (only modules {})", modules.join(", ")) }
    );
    let module = |name: &str| {
        let builder = CudaBuilder::new("kernels", toolchain.clone()).feature(name);
        let builder = builder
            .watch("crates/efa_queue")
            .watch("crates/cuda_std")
            .watch("crates/cuda_std_macros")
            .watch("crates/payload_pattern");
        match name {
            "bulk" => builder.arch("sm_90").isa(80),
            "puts" | "queue" | "ipc" => builder.arch(&arch),
            // ISA 8.2 has `st.mmio`, which a NIC's registers require.
            _ => builder.arch(&arch).isa(82),
        }
    };
    let paths =
        CudaBuilder::build_all(modules.iter().map(|name| module(name)).collect()).map_err(|error| error.to_string())?;
    let entries = modules.iter().zip(&paths).map(|(name, path)| format!("({name:?}, include_str!({path:?})),\n"));
    let file = Path::new(&std::env::var("OUT_DIR").unwrap_or_default()).join("ptx.rs");
    std::fs::write(&file, format!("[\n{}]\n", entries.collect::<String>()))
        .map_err(|error| format!("{}: {error}", file.display()))
}

/// Returns all modules, or those named by `GINLAB_MODULES`. An edit of code that all modules share, such as the ring,
/// recompiles each of them.
fn modules() -> Result<Vec<&'static str>, String> {
    println!("cargo::rerun-if-env-changed=GINLAB_MODULES");
    let Ok(named) = std::env::var("GINLAB_MODULES") else { return Ok(MODULES.into()) };
    let find = |name: &str| {
        let known = MODULES.into_iter().find(|known| *known == name.trim());
        known.ok_or_else(|| format!("GINLAB_MODULES: unknown module {name:?}: expected one of {}", MODULES.join(", ")))
    };
    named.split(',').map(find).collect()
}

/// Returns the compiler named in kernels/rustc-version, or the one requested instead.
fn kernel_compiler() -> Result<Toolchain, String> {
    let release = release_in(Path::new("kernels/rustc-version")).map_err(|error| error.to_string())?;
    let toolchain = Toolchain::find(&release).map_err(|error| error.to_string())?;
    if !toolchain.is_the_projects {
        println!(
            "cargo::warning=GINLAB_KERNEL_RUSTC: the kernels are compiled by {toolchain} instead of the project's \
             compiler {release}; results record it"
        );
    }
    Ok(toolchain)
}
