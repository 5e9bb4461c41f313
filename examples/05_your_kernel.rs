//! Tutorial, part 5: a kernel of your own, an all-gather in a ring (docs/tutorial/05-your-kernel.md).
//!
//! ```text
//! cargo run --release --example 05_your_kernel                    through mapped memory, then over rails
//! cargo run --release --example 05_your_kernel -- worst:seed=5    with the least ordered network that EFA permits
//! ```
//!
//! Its kernel: `tutorial_all_gather` in kernels/src/tutorial.rs.

use ginlab::bootstrap::{self, Bootstrap};
use ginlab::gin::{Fabric, PePath, World, WorldOptions};
use ginlab::signals;
use kernels::tutorial::{AllGatherArgs, TUTORIAL_ALL_GATHER};
use std::error::Error;

/// Number of values per PE.
const VALUES: u64 = 1000;

fn main() -> Result<(), Box<dyn Error>> {
    signals::install()?;
    // Kernels for a GPU; the emulated device runs the native ones.
    ginlab::cuda::set_ptx(&kernels_ptx::PTX);
    let fabric = Fabric::named(std::env::args().nth(1).as_deref(), &[])?;
    let mut ranks = Bootstrap::auto(Some(4), bootstrap::BootstrapOptions::default())?;
    let options = WorldOptions { fabric, heap_bytes: 1 << 20, ..WorldOptions::default() };
    let text = both_paths(&mut ranks, &options)?;
    let is_first = ranks.rank() == 0;
    ranks.finish()?;
    if is_first {
        println!("{text}");
    }
    Ok(())
}

/// Runs the kernel on both paths. Returns one line per path.
///
/// # Errors
/// Returns the first error of [`gather`].
pub fn both_paths(ranks: &mut Bootstrap, options: &WorldOptions) -> Result<String, Box<dyn Error>> {
    let mut lines = Vec::new();
    for path in [PePath::Auto, PePath::Rails] {
        lines.push(gather(ranks, &WorldOptions { path, ..options.clone() })?);
    }
    Ok(lines.join("\n"))
}

/// Gathers the values of all PEs on every PE. Returns a summary.
///
/// # Errors
/// Returns an error if a value is wrong on any rank.
fn gather(ranks: &mut Bootstrap, options: &WorldOptions) -> Result<String, Box<dyn Error>> {
    let mut world = World::open(ranks, options)?;
    let (me, pes) = (world.my_pe(), world.n_pes());
    let all = world.alloc::<u64>(ranks, u64::from(pes) * VALUES)?;
    let arrived = world.signals(ranks, pes)?;
    world.write(all.slice(u64::from(me) * VALUES, VALUES), &values(me))?;

    // SAFETY: the arguments are objects of this world's heap.
    unsafe { world.launch(ranks, &TUTORIAL_ALL_GATHER, 1, 64, AllGatherArgs { all, arrived })? };

    let expected: Vec<u64> = (0..pes).flat_map(values).collect();
    let is_right = world.read(all)? == expected;
    let all_right = !ranks.all_gather_values(&is_right, "checked values")?.contains(&false);
    let (by, device) = (world.path_to((me + 1) % pes).to_owned(), world.device().name());
    world.close(ranks)?;
    let text = format!("path {}: {pes} PEs have gathered {} values by {by} on {device}", options.path, expected.len());
    if all_right { Ok(text) } else { Err(format!("{text}: wrong values").into()) }
}

/// Returns the values of PE `pe`.
fn values(pe: u32) -> Vec<u64> {
    (0..VALUES).map(|at| u64::from(pe) << 32 | at).collect()
}
