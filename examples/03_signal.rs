//! Tutorial, part 3: puts with signals, and a receiver that waits for them (docs/tutorial/03-signal.md).
//!
//! ```text
//! cargo run --release --example 03_signal                         over an EFA device if present, otherwise over tcp
//! cargo run --release --example 03_signal -- worst:seed=5         over the least ordered network that EFA permits
//! ```
//!
//! Its kernel: `tutorial_signal` in kernels/src/tutorial.rs. Without its `signal_wait_until`, the receiver reads bytes
//! that have not arrived. Neither a delay nor the arrival of another message proves that they have: the network
//! preserves no order. Remove the wait and run this program over `worst`, which exposes the error.

use ginlab::bootstrap::{self, Bootstrap};
use ginlab::gin::{Fabric, PePath, World, WorldOptions};
use ginlab::signals;
use kernels::tutorial::{SignalArgs, TUTORIAL_SIGNAL, mark};
use std::error::Error;

/// Number of messages, all in flight at the same time. Each has its own signal.
const MESSAGES: u32 = 8;
/// Bytes per message.
const BYTES: u64 = 16 << 10;
const THREADS: u32 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    signals::install()?;
    // Kernels for a GPU; the emulated device runs the native ones.
    ginlab::cuda::set_ptx(&kernels_ptx::PTX);
    let fabric = Fabric::named(std::env::args().nth(1).as_deref(), &[])?;
    let mut ranks = Bootstrap::auto(Some(2), bootstrap::BootstrapOptions::default())?;
    let options = WorldOptions { path: PePath::Rails, fabric, heap_bytes: 4 << 20, ..WorldOptions::default() };
    let text = messages(&mut ranks, &options)?;
    let is_first = ranks.rank() == 0;
    ranks.finish()?;
    if is_first {
        println!("{text}");
    }
    Ok(())
}

/// Returns a summary of the messages.
///
/// # Errors
/// Returns an error if a kernel has found a wrong byte after the signal of its message.
pub fn messages(ranks: &mut Bootstrap, options: &WorldOptions) -> Result<String, Box<dyn Error>> {
    let mut world = World::open(ranks, options)?;
    let (me, pes) = (world.my_pe(), world.n_pes());
    let previous = (me + pes - 1) % pes;
    let from = world.alloc::<u8>(ranks, u64::from(MESSAGES) * BYTES)?;
    let to = world.alloc::<u8>(ranks, u64::from(MESSAGES) * BYTES)?;
    let wrong = world.alloc::<u64>(ranks, u64::from(THREADS))?;
    let arrived = world.signals(ranks, MESSAGES)?;
    let payload: Vec<u8> = (0..MESSAGES).flat_map(|message| vec![mark(me, message); BYTES as usize]).collect();
    world.write(from, &payload)?;
    // Every thread of the kernel must replace its value, so a kernel that checks nothing also causes an error.
    world.write(wrong, &[u64::MAX; THREADS as usize])?;

    let args = SignalArgs { from, to, arrived, messages: MESSAGES, wrong };
    // SAFETY: the arguments are objects of this world's heap, and `wrong` has one value per thread.
    unsafe { world.launch(ranks, &TUTORIAL_SIGNAL, 1, THREADS, args)? };

    let wrong = world.read(wrong)?.into_iter().fold(0, u64::saturating_add);
    let wrong = ranks.all_gather_values(&wrong, "wrong bytes")?.into_iter().fold(0, u64::saturating_add);
    let text = format!(
        "{MESSAGES} messages of {BYTES} B from PE {previous} by {} on {}\n\
         each was complete when its signal was observed: {wrong} wrong bytes",
        world.path_to(previous),
        world.device().name()
    );
    world.close(ranks)?;
    if wrong == 0 { Ok(text) } else { Err(format!("{wrong} wrong bytes").into()) }
}
