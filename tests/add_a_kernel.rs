//! docs/add-a-kernel.md, done: a kernel is one file, and whoever launches it needs its handle and nothing else.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

#[path = "toy/scale.rs"]
mod scale;

use ginlab::cuda::{Device, DeviceError, Place};
use scale::{SCALE, ScaleArgs};

// The page shows this function as it stands.
fn scaled(device: &Device, numbers: &[u64], factor: u64) -> Result<Vec<u64>, DeviceError> {
    let buffer = device.allocate(Place::Device, size_of_val(numbers))?;
    buffer.write(0, numbers)?;
    let args = ScaleArgs { values: buffer.pointer(), count: numbers.len() as u64, factor };
    // SAFETY: the buffer lives until the launch has ended, and nobody else has it.
    let launch = unsafe { device.launch(&SCALE, 3, 4, args) }?;
    launch.wait(|| Ok::<(), DeviceError>(()))?;
    let mut results = vec![0; numbers.len()];
    buffer.read(0, &mut results)?;
    Ok(results)
}

#[test]
fn the_kernel_runs_by_its_handle() {
    let numbers: Vec<u64> = (0..100).collect();
    let expected: Vec<u64> = numbers.iter().map(|number| number * 7).collect();
    assert_eq!(scaled(&Device::Emulated, &numbers, 7).unwrap(), expected);
    assert_eq!(SCALE.name(), "scale");
}

#[test]
fn the_page_shows_what_is_tested() {
    let page = include_str!("../docs/add-a-kernel.md");
    let kernel = include_str!("toy/scale.rs");
    let this = include_str!("add_a_kernel.rs");
    let function = this.split_once("as it stands.\n").unwrap().1.split_once("\n}\n").unwrap().0;
    assert!(page.contains(kernel.trim()), "tests/toy/scale.rs");
    assert!(page.contains(function), "fn scaled");
}

#[test]
fn the_page_on_talking_kernels_shows_the_example() {
    let page = include_str!("../docs/gin.md");
    let example = include_str!("../examples/ring_shift.rs");
    let start = example.find("    let (from, to, arrived) =").unwrap();
    let call = example[start..].split("    let before =").next().unwrap();
    assert!(page.contains(include_str!("../kernels/src/ring_shift.rs").trim()), "kernels/src/ring_shift.rs");
    assert!(page.contains(call.trim_end()), "examples/ring_shift.rs");
}
