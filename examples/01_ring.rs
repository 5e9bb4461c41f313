//! Tutorial, part 1: the threads of a kernel push commands into a ring, and the CPU pops them
//! (docs/tutorial/01-ring.md).
//!
//! ```text
//! cargo run --release --example 01_ring
//! ```
//!
//! Its kernel: `tutorial_push` in kernels/src/tutorial.rs.

use ginlab::cuda::{Device, DeviceChoice, DeviceError};
use ginlab::ring::RingMemory;
use kernels::command::Command;
use kernels::ring::consumer::Consumer;
use kernels::ring::parity;
use kernels::tutorial::{PushArgs, TUTORIAL_PUSH};
use std::error::Error;
use std::time::Duration;

/// Number of slots, a power of two. There are fewer slots than commands, so every slot is used in several laps.
const SLOTS: usize = 8;
const BLOCKS: u32 = 2;
const THREADS: u32 = 4;
/// Number of commands per thread.
const PUSHES: u32 = 3;

fn main() -> Result<(), Box<dyn Error>> {
    // Kernels for a GPU; the emulated device runs the native ones.
    ginlab::cuda::set_ptx(&kernels_ptx::PTX);
    println!("{}", laps(DeviceChoice::Auto)?);
    Ok(())
}

/// Returns one line per lap of the ring: its tickets, its parity, and the threads that pushed.
///
/// # Errors
/// Returns an error if a command is missing, duplicated, or out of its thread's order.
pub fn laps(choice: DeviceChoice) -> Result<String, Box<dyn Error>> {
    let (device, _) = Device::open(choice, 0)?;
    let memory = RingMemory::new(&device, SLOTS, Duration::from_secs(10))?;
    // SAFETY: the slots have the size of commands, no other consumer exists, and `memory` outlives this one.
    let mut consumer: Consumer = unsafe { memory.consumer() };
    let args = PushArgs { ring: memory.ring(), pushes: PUSHES };
    // SAFETY: `memory` outlives the launch.
    let mut launch = unsafe { device.launch(&TUTORIAL_PUSH, BLOCKS, THREADS, args) }?;

    let producers = (BLOCKS * THREADS) as usize;
    let expected = producers * PUSHES as usize;
    let mut commands = Vec::new();
    while commands.len() < expected {
        // Queries the kernel before the pop. If the kernel has already returned, a ring without commands stays empty.
        let ended = launch.is_done()?;
        match consumer.pop() {
            Some(words) => {
                commands.push(Command::decode(words).ok_or("a slot without a command")?);
                // Frees the slot for the next lap.
                consumer.publish_tail();
                // Completes all commands popped so far. A proxy does so once the network has completed them.
                consumer.publish_watermark(consumer.cursor());
            }
            None if ended => return Err(format!("{} of {expected} commands", commands.len()).into()),
            None => std::thread::yield_now(),
        }
    }
    launch.wait(|| Ok::<(), DeviceError>(()))?;

    // Tickets of different threads interleave. Those of one thread increase with its commands.
    let mut next = vec![0; producers];
    for (ticket, command) in commands.iter().enumerate() {
        let number = next.get_mut(command.source_offset as usize).ok_or("no such thread")?;
        if command.destination_offset != *number {
            return Err(format!("ticket {ticket}: {command:?} instead of number {number}").into());
        }
        *number += 1;
    }

    let name = device.name();
    let mut lines = vec![format!("{expected} commands of {producers} threads through {SLOTS} slots on {name}")];
    for (lap, commands) in commands.chunks(SLOTS).enumerate() {
        let (first, last) = (lap * SLOTS, lap * SLOTS + commands.len() - 1);
        let bit = parity(first as u64, SLOTS.trailing_zeros()) >> 63;
        let threads: Vec<String> = commands.iter().map(|command| command.source_offset.to_string()).collect();
        lines.push(format!("tickets {first} to {last}: parity {bit}, from threads {}", threads.join(" ")));
    }
    Ok(lines.join("\n"))
}
