//! Every PE sends its values to the next PE: over NVLink where possible, otherwise over rails. Its kernel:
//! kernels/src/ring_shift.rs.
//!
//! ```text
//! cargo run --release --example ring_shift -- 8                   8 PEs of one host
//! cargo run --release --example ring_shift -- 8 rails             the same over rails
//! mpirun -np 4 --map-by node target/release/examples/ring_shift   four hosts
//! mpirun -np 32 target/release/examples/ring_shift                four hosts with 8 each: mixed
//! ```

use ginlab::bootstrap::{self, Bootstrap};
use ginlab::gin::{Fabric, PePath, World, WorldOptions};
use ginlab::signals;
use kernels::ring_shift::{RING_SHIFT, RingShift};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    signals::install()?;
    // Kernels for a GPU; the emulated device runs the native ones.
    ginlab::cuda::set_ptx(&kernels_ptx::PTX);
    let mut words = std::env::args().skip(1);
    let pes = words.next().map(|text| text.parse()).transpose()?;
    let path = words.next().map_or(Ok(Default::default()), |text| text.parse())?;
    println!("{}", shift(pes, path, words.next().as_deref())?);
    Ok(())
}

/// Returns a summary: the values received, their sender, and the path used for the put.
///
/// # Errors
/// Returns an error if a value is wrong.
pub fn shift(pes: Option<usize>, path: PePath, provider: Option<&str>) -> Result<String, Box<dyn Error>> {
    let fabric = Fabric::named(provider, &[])?;
    let mut ranks = Bootstrap::auto(pes, bootstrap::BootstrapOptions::default())?;
    let mut world =
        World::open(&mut ranks, &WorldOptions { path, fabric, heap_bytes: 1 << 20, ..WorldOptions::default() })?;
    let (me, all) = (world.my_pe(), world.n_pes());
    let (from, to, arrived) =
        (world.alloc::<u64>(&mut ranks, 1000)?, world.alloc::<u64>(&mut ranks, 1000)?, world.signals(&mut ranks, 1)?);
    world.write(from, &[u64::from(me) + 1; 1000])?;

    // SAFETY: the arguments are objects of this world's heap.
    unsafe { world.launch(&mut ranks, &RING_SHIFT, 1, 4, RingShift { from, to, arrived })? };

    let before = (me + all - 1) % all;
    let right = world.read(to)?.iter().all(|value| *value == u64::from(before) + 1);
    let (path, device) = (world.path_to((me + 1) % all).to_owned(), world.device().name());
    world.close(&mut ranks)?;
    ranks.finish()?;
    let said = format!("PE {me} of {all}, {device}: all from PE {before}; put by {path}");
    if right { Ok(said) } else { Err(format!("PE {me}: wrong values").into()) }
}
