//! Tutorial, part 4: the same puts over one rail and over two (docs/tutorial/04-two-rails.md).
//!
//! ```text
//! cargo run --release --example 04_two_rails                      over EFA devices if present, otherwise over tcp
//! cargo run --release --example 04_two_rails -- shared            over shared memory of this machine
//! ```
//!
//! Its kernel is the one of part 2: `tutorial_puts` in kernels/src/tutorial.rs. The proxy distributes the puts.

use ginlab::bootstrap::{self, Bootstrap};
use ginlab::gin::{Fabric, PePath, World, WorldOptions};
use ginlab::rails::Strategy;
use ginlab::signals;
use kernels::tutorial::{PutsArgs, TUTORIAL_PUTS};
use std::error::Error;

/// Number of puts per pass; the kernel makes two passes.
const PUTS: u64 = 8;
/// Bytes per put.
const BYTES: u64 = 64 << 10;
/// Number of rails, and the strategy.
const CASES: [(usize, Strategy); 3] = [(1, Strategy::Single), (2, Strategy::RoundRobin), (2, Strategy::Split)];

fn main() -> Result<(), Box<dyn Error>> {
    signals::install()?;
    // Kernels for a GPU; the emulated device runs the native ones.
    ginlab::cuda::set_ptx(&kernels_ptx::PTX);
    let fabric = Fabric::named(std::env::args().nth(1).as_deref(), &[])?;
    let mut ranks = Bootstrap::auto(Some(2), bootstrap::BootstrapOptions::default())?;
    let options = WorldOptions { path: PePath::Rails, fabric, heap_bytes: 4 << 20, ..WorldOptions::default() };
    let text = cases(&mut ranks, &options)?;
    let is_first = ranks.rank() == 0;
    ranks.finish()?;
    if is_first {
        println!("{text}");
    }
    Ok(())
}

/// Returns one line per case: the bytes that this rank has posted on each rail.
///
/// # Errors
/// Returns an error if a byte is wrong, or if a rail has posted more or less than its share.
pub fn cases(ranks: &mut Bootstrap, options: &WorldOptions) -> Result<String, Box<dyn Error>> {
    let mut lines = vec![format!("{} puts of {BYTES} B", 2 * PUTS)];
    for (rails, strategy) in CASES {
        let posted = rail_bytes(ranks, &WorldOptions { rails, strategy, ..options.clone() })?;
        let line = format!("{strategy}: {posted:?} bytes per rail");
        if posted != vec![2 * PUTS * BYTES / rails as u64; rails] {
            return Err(format!("{line}: not evenly distributed").into());
        }
        lines.push(line);
    }
    Ok(lines.join("\n"))
}

/// Opens a world with these options and runs the kernel. Returns the bytes that this rank has posted, by rail.
fn rail_bytes(ranks: &mut Bootstrap, options: &WorldOptions) -> Result<Vec<u64>, Box<dyn Error>> {
    let mut world = World::open(ranks, options)?;
    let (me, pes) = (world.my_pe(), world.n_pes());
    let from = world.alloc::<u8>(ranks, PUTS * BYTES)?;
    let to = world.alloc::<u8>(ranks, 2 * PUTS * BYTES)?;
    let times = world.alloc::<u64>(ranks, 2)?;
    world.write(from, &payload(me))?;

    let args = PutsArgs { from, to, puts: PUTS, times };
    // SAFETY: the arguments are objects of this world's heap.
    unsafe { world.launch(ranks, &TUTORIAL_PUTS, 1, 64, args)? };
    world.barrier(ranks)?;

    let mut posted = vec![0u64; options.rails];
    for proxy in world.snapshots()? {
        posted.iter_mut().zip(&proxy.counters.rail_bytes).for_each(|(sum, bytes)| *sum += bytes);
    }
    let is_right = world.read(to)? == payload((me + pes - 1) % pes).repeat(2);
    let all_right = !ranks.all_gather_values(&is_right, "checked bytes")?.contains(&false);
    world.close(ranks)?;
    if all_right { Ok(posted) } else { Err("wrong bytes".into()) }
}

/// Returns the bytes that PE `pe` puts. They differ between PEs and between puts.
fn payload(pe: u32) -> Vec<u8> {
    (0..PUTS * BYTES).map(|at| (at + at / BYTES * 7 + u64::from(pe) * 31 + 1) as u8).collect()
}
