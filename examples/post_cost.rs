//! What a post costs the thread that posts, in libfabric's EFA provider over a card in software: the provider's own time, one
//! write at a time and in chains that share a doorbell (FI_MORE).
//!
//! `cargo run --release --example post_cost -- [FABRIC:DOMAIN]`; instructions by library: `valgrind --tool=callgrind
//! --toggle-collect=post_window target/release/examples/post_cost`, then `callgrind_annotate`.

use ginlab::fabric::discover::{Reach, select_domains};
use ginlab::fabric::libfabric::{LibfabricRail, LibfabricRegion, RailOptions};
use ginlab::fabric::{Access, Completion, FabricError, Memory, Post, Rail, RemoteRegion, Transfer, soft};
use std::time::Instant;

/// Writes posted between two drains.
const WINDOW: u64 = 64;
const BYTES: u64 = 64;

/// Posts a window of writes; by its name tools find it.
#[unsafe(no_mangle)]
#[inline(never)]
fn post_window(rail: &mut LibfabricRail, region: &LibfabricRegion, remote: RemoteRegion, chain: u64) -> u64 {
    let mut posted = 0;
    for token in 0..WINDOW {
        let more = (token + 1) % chain != 0;
        let transfer = Transfer {
            local_offset: 0,
            peer: 0,
            remote,
            remote_offset: BYTES,
            bytes: BYTES,
            immediate: None,
            token,
            more,
        };
        // SAFETY: the region's bytes stay as they are.
        posted += u64::from(unsafe { rail.write(region, &transfer) }.is_ok_and(|post| post == Post::Accepted));
    }
    posted
}

fn drain(rail: &mut LibfabricRail, count: u64) -> Result<(), FabricError> {
    let (mut completions, mut done) = (Vec::new(), 0);
    let started = Instant::now();
    while done < count && started.elapsed().as_secs() < 20 {
        rail.poll(&mut completions)?;
        for completion in completions.drain(..) {
            match completion {
                Completion::Failed { error, .. } => return Err(*error),
                _ => done += 1,
            }
        }
    }
    Ok(())
}

fn main() -> Result<(), FabricError> {
    // SAFETY: the process has one thread.
    unsafe { soft::use_cards_within_a_machine() };
    let cards = "soft-efa:p5,cards=1,unmoved";
    soft::load(cards)?;
    let named: Vec<String> = std::env::args().skip(1).collect();
    let plan = select_domains(cards, 1, Reach::SameHost, &named, None, 0, 1)?;
    let mut rail = LibfabricRail::open(&plan.domains[0], &RailOptions::default())?;
    let own = rail.address()?;
    rail.insert_peers(&[own])?;
    let buffer = vec![0u64; 1024];
    let memory = Memory { address: buffer.as_ptr() as u64, bytes: 8192, cuda_device: None };
    // SAFETY: the memory outlives the region, which ends with this function before it.
    let region = unsafe { rail.register(memory, Access::ALL) }?;
    let remote = rail.remote(&region);
    for chain in [1, 16] {
        let mut best = f64::INFINITY;
        for _ in 0..300 {
            let started = Instant::now();
            let posted = post_window(&mut rail, &region, remote, chain);
            let nanoseconds = started.elapsed().as_nanos() as f64;
            drain(&mut rail, posted)?;
            if posted == WINDOW {
                best = best.min(nanoseconds / WINDOW as f64);
            }
        }
        println!("{}:{} chain {chain}: {best:.0} ns per post", plan.domains[0].fabric, plan.domains[0].name);
    }
    Ok(())
}
