//! Checks that each Rust block of docs/*.md is part of a compiled source, and runs the kernel of docs/add-a-kernel.md.
//! A kernel is one file, and a launch needs only its handle.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

#[path = "toy/scale.rs"]
mod scale;

use ginlab::bootstrap::{self, Bootstrap};
use ginlab::cuda::{Device, DeviceError, MemoryLocation};
use ginlab::gin::{Fabric, PePath, World, WorldOptions};
use scale::{SCALE, ScaleArgs};
use std::collections::BTreeSet;
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

// The page shows this function unchanged.
fn scaled(device: &Device, numbers: &[u64], factor: u64) -> Result<Vec<u64>, DeviceError> {
    let buffer = device.allocate(MemoryLocation::Device, size_of_val(numbers))?;
    buffer.write(0, numbers)?;
    let args = ScaleArgs { values: buffer.pointer(), count: numbers.len() as u64, factor };
    // SAFETY: the buffer lives until the launch has ended, and no other code accesses it.
    let launch = unsafe { device.launch(&SCALE, 3, 4, args) }?;
    launch.wait(|| Ok::<(), DeviceError>(()))?;
    let mut results = vec![0; numbers.len()];
    buffer.read(0, &mut results)?;
    Ok(results)
}

#[test]
fn kernel_runs_by_its_handle() {
    let numbers: Vec<u64> = (0..100).collect();
    let expected: Vec<u64> = numbers.iter().map(|number| number * 7).collect();
    assert_eq!(scaled(&Device::Emulated, &numbers, 7).unwrap(), expected);
    assert_eq!(SCALE.name(), "scale");
}

#[test]
fn page_shows_tested_code() {
    let page = include_str!("../docs/add-a-kernel.md");
    let kernel = include_str!("toy/scale.rs");
    let this = include_str!("add_a_kernel.rs");
    let function = this.split_once("this function unchanged.\n").unwrap().1.split_once("\n}\n").unwrap().0;
    assert!(page.contains(kernel.trim()), "tests/toy/scale.rs");
    assert!(page.contains(function), "fn scaled");
}

#[test]
fn page_on_gin_shows_example() {
    let page = include_str!("../docs/gin.md");
    let example = include_str!("../examples/ring_shift.rs");
    let start = example.find("    let (from, to, arrived) =").unwrap();
    let call = example[start..].split("    let before =").next().unwrap();
    assert!(page.contains(include_str!("../kernels/src/ring_shift.rs").trim()), "kernels/src/ring_shift.rs");
    assert!(page.contains(call.trim_end()), "examples/ring_shift.rs");
}

/// The lines shown in docs/worst-network.md.
fn over_the_worst_network() -> Result<(World, Bootstrap), Box<dyn Error>> {
    let mut ranks = Bootstrap::auto(Some(1), bootstrap::BootstrapOptions::default())?;
    let fabric = Fabric::named(Some("worst:seed=5"), &[])?;
    let world = World::open(&mut ranks, &WorldOptions { path: PePath::Rails, fabric, ..WorldOptions::default() })?;
    Ok((world, ranks))
}

#[test]
fn world_opens_over_worst_network_of_page() {
    let (world, mut ranks) = over_the_worst_network().unwrap();
    assert_eq!(world.n_pes(), 1);
    world.close(&mut ranks).unwrap();
    ranks.finish().unwrap();
}

/// The lines shown in docs/emulated-device.md.
fn under_all_orders(kernel: impl Fn(&AtomicU64) + Sync, arguments: AtomicU64) -> std::io::Result<u64> {
    use cuda_std::emulation::EmulatedGrid;

    for seed in 0..1000 {
        EmulatedGrid::new(2, 64).workers(1).seeded(seed).run(|| kernel(&arguments))?;
    }
    Ok(arguments.into_inner())
}

#[test]
fn kernel_runs_under_orders_of_page() {
    let count = |threads: &AtomicU64| {
        threads.fetch_add(1, Ordering::Relaxed);
    };
    assert_eq!(under_all_orders(count, AtomicU64::new(0)).unwrap(), 1000 * 2 * 64);
}

/// Returns the files below `folder` whose names end with `end`.
fn files(folder: &str, end: &str) -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder);
    let pattern = |path: &PathBuf| path.to_string_lossy().ends_with(end);
    let (mut todo, mut found) = (vec![folder], Vec::new());
    while let Some(folder) = todo.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
            } else if pattern(&path) {
                found.push(path);
            }
        }
    }
    found
}

/// Returns the non-empty lines without indentation, each terminated by a newline.
fn lines(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).fold("\n".to_owned(), |all, line| all + line + "\n")
}

#[test]
fn every_rust_block_of_pages_is_compiled() {
    let sources = ["examples", "experiments", "kernels/src", "tests"].iter().flat_map(|folder| files(folder, ".rs"));
    let sources: Vec<String> = sources.map(|path| lines(&std::fs::read_to_string(path).unwrap())).collect();
    let mut pages = BTreeSet::new();
    for path in files("docs", ".md") {
        let page = std::fs::read_to_string(&path).unwrap();
        for block in page.split("```rust\n").skip(1) {
            let block = block.split_once("```").unwrap().0;
            let held = sources.iter().any(|source| source.contains(&lines(block)));
            assert!(held, "{}: in no source:\n{block}", path.display());
            pages.insert(path.file_name().unwrap().to_owned());
        }
    }
    assert!(pages.len() >= 5, "{pages:?}");
}
