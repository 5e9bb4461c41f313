//! A custom algorithm on the fabric layer: all-gather in a ring.
//!
//! `cargo run --release --example all_gather [RANKS] [BYTES] [PROVIDER]`; with the provider `worst:seed=7` it runs over
//! the worst-case network model, with every behaviour that EFA permits.
//!
//! Here the ranks are tasks of one thread, each with its own rail on this machine. The algorithm does not depend on
//! that.

use ginlab::cuda::{Device, DeviceChoice};
use ginlab::fabric::{Access, AnyRail, Fabric, RailOptions, RankPlace, Reach};
use ginlab::flow::{Flow, FlowError, Offer, Region, Target, run};
use std::error::Error;
use std::time::Duration;

/// On entry, block `rank` of each buffer is filled. On return, all blocks are filled. In each step, a rank forwards the
/// block that arrived last, and the immediate after it signals its arrival.
///
/// A neighbour that does not poll receives at most one immediate per step. Its completion queue has space for 4096
/// (`libfabric::IMMEDIATES`).
async fn all_gather(
    flow: &Flow<AnyRail>,
    mine: &Region<AnyRail>,
    next: &Target,
    rank: u64,
    ranks: u64,
) -> Result<(), FlowError> {
    let block = mine.bytes() / ranks;
    for step in 0..ranks - 1 {
        let offset = (rank + ranks - step) % ranks * block;
        let write = flow.write_with_immediate(mine, offset, next, offset, block, step as u32);
        flow.wait_immediate(step as u32, 1).await?;
        write.await?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |usual: u64| arguments.next().map_or(Ok(usual), |text| text.parse());
    let (ranks, bytes) = (number(4)?.max(1), number(1 << 20)?);
    println!("{}", gather(ranks, bytes, arguments.next().as_deref().unwrap_or("tcp"))?);
    Ok(())
}

/// Runs the all-gather and checks every byte. Returns a summary.
pub fn gather(ranks: u64, bytes: u64, provider: &str) -> Result<String, Box<dyn Error>> {
    let (device, _) = Device::open(DeviceChoice::Emulated, 0)?;
    let fabric = Fabric::named(Some(provider), &[])?;
    let rails_of = |rank| fabric.choose(1, &RankPlace::alone(rank, Reach::SameHost), RailOptions::default());

    // Between machines, a launcher and a bootstrap would exchange the addresses.
    let mut flows = Vec::new();
    let mut buffers = Vec::new();
    let mut offers: Vec<Offer> = Vec::new();
    for rank in 0..ranks {
        let chosen = rails_of(rank as usize)?;
        let flow = Flow::new(chosen.open()?, Duration::from_secs(10));
        let buffer = device.allocate(chosen.place(), (ranks * bytes) as usize)?;
        buffer.write((rank * bytes) as usize, &vec![rank as u8 + 1; bytes as usize])?;
        let region = flow.register(buffer, Access::SOURCE | Access::REMOTE_WRITE)?;
        offers.push(flow.offer(&[&region])?);
        flows.push(flow);
        buffers.push(region);
    }
    let mut targets = Vec::new();
    let count = ranks as usize;
    for (rank, flow) in flows.iter().enumerate() {
        let (next, before) = ((rank + 1) % count, (rank + count - 1) % count);
        targets.push(Target::new(flow.add_peer(&offers[next])?, &offers[next], 0)?);
        // An EFA device rejects writes of a peer whose address it does not have.
        if before != next {
            flow.add_peer(&offers[before])?;
        }
    }

    let tasks = flows.clone().into_iter().zip(buffers.clone()).zip(targets).enumerate();
    run(flows, async move {
        let tasks: Vec<_> = tasks
            .map(|(rank, ((flow, mine), next))| {
                tokio::task::spawn_local(async move { all_gather(&flow, &mine, &next, rank as u64, ranks).await })
            })
            .collect();
        for task in tasks {
            task.await??;
        }
        Ok::<_, Box<dyn Error>>(())
    })??;

    for (rank, region) in buffers.iter().enumerate() {
        let mut all = vec![0u8; (ranks * bytes) as usize];
        region.buffer().read(0, &mut all)?;
        let wrong = all.iter().enumerate().filter(|(i, byte)| **byte != (*i as u64 / bytes) as u8 + 1).count();
        if wrong > 0 {
            return Err(format!("rank {rank}: {wrong} wrong bytes").into());
        }
    }
    let rail = offers.first().and_then(|offer| offer.rails.first()).map_or("nothing", String::as_str);
    Ok(format!("{ranks} ranks gathered {bytes} B of each over {rail}"))
}
