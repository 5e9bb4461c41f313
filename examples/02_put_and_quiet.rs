//! Tutorial, part 2: puts with a `quiet` after each, and with a single one at the end
//! (docs/tutorial/02-put-and-quiet.md).
//!
//! ```text
//! cargo run --release --example 02_put_and_quiet                  over an EFA device if present, otherwise over tcp
//! cargo run --release --example 02_put_and_quiet -- shared        over shared memory of this machine
//! ```
//!
//! Its kernel: `tutorial_puts` in kernels/src/tutorial.rs.

use ginlab::bootstrap::{self, Bootstrap};
use ginlab::gin::{Fabric, PePath, World, WorldOptions};
use ginlab::signals;
use kernels::tutorial::{PutsArgs, TUTORIAL_PUTS};
use std::error::Error;

/// Number of puts per pass.
const PUTS: u64 = 64;
/// Bytes per put.
const BYTES: u64 = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    signals::install()?;
    // Kernels for a GPU; the emulated device runs the native ones.
    ginlab::cuda::set_ptx(&kernels_ptx::PTX);
    let fabric = Fabric::named(std::env::args().nth(1).as_deref(), &[])?;
    // Starts the second rank: this program again, as a child.
    let mut ranks = Bootstrap::auto(Some(2), bootstrap::BootstrapOptions::default())?;
    // `Rails`: puts are commands in the ring, even if the ranks could map each other's memory.
    let options = WorldOptions { path: PePath::Rails, fabric, heap_bytes: 4 << 20, ..WorldOptions::default() };
    let text = puts(&mut ranks, &options)?;
    let is_first = ranks.rank() == 0;
    ranks.finish()?;
    if is_first {
        println!("{text}");
    }
    Ok(())
}

/// Returns the times per put, with a `quiet` after each and with a single one.
///
/// # Errors
/// Returns an error if a byte is wrong on any rank.
pub fn puts(ranks: &mut Bootstrap, options: &WorldOptions) -> Result<String, Box<dyn Error>> {
    let mut world = World::open(ranks, options)?;
    let (me, pes) = (world.my_pe(), world.n_pes());
    let (next, previous) = ((me + 1) % pes, (me + pes - 1) % pes);
    let from = world.alloc::<u8>(ranks, PUTS * BYTES)?;
    let to = world.alloc::<u8>(ranks, 2 * PUTS * BYTES)?;
    let times = world.alloc::<u64>(ranks, 2)?;
    world.write(from, &payload(me))?;

    let args = PutsArgs { from, to, puts: PUTS, times };
    // SAFETY: the arguments are objects of this world's heap.
    unsafe { world.launch(ranks, &TUTORIAL_PUTS, 1, 64, args)? };
    // Every kernel ends with a `quiet`. After the barrier, the bytes of all PEs have arrived.
    world.barrier(ranks)?;

    let expected = payload(previous).repeat(2);
    let wrong = world.read(to)?.iter().zip(&expected).filter(|(byte, expected)| byte != expected).count();
    let wrong: usize = ranks.all_gather_values(&wrong, "wrong bytes")?.iter().sum();
    let us: Vec<f64> = world.read(times)?.iter().map(|ns| *ns as f64 / 1000.0 / PUTS as f64).collect();
    let text = format!(
        "{PUTS} puts of {BYTES} B to PE {next} by {} on {}\n\
         quiet after each put: {:.2} us per put\n\
         one quiet at the end: {:.2} us per put",
        world.path_to(next),
        world.device().name(),
        us[0],
        us[1]
    );
    world.close(ranks)?;
    if wrong == 0 { Ok(text) } else { Err(format!("{wrong} wrong bytes").into()) }
}

/// Returns the bytes that PE `pe` puts. They differ between PEs and between puts.
fn payload(pe: u32) -> Vec<u8> {
    (0..PUTS * BYTES).map(|at| (at + at / BYTES * 7 + u64::from(pe) * 31 + 1) as u8).collect()
}
