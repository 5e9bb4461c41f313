//! A custom algorithm on the fabric layer: all-gather in a ring.
//!
//! `cargo run --release --example all_gather [RANKS] [BYTES]`
//!
//! The ranks are tasks of one thread here, each with a rail of its own over TCP on this machine; nothing in the algorithm
//! knows that.

use ginlab::cuda::{Choice, Device, Place};
use ginlab::fabric::Access;
use ginlab::fabric::discover::{Reach, choose_provider, select_domains};
use ginlab::fabric::libfabric::{LibfabricRail, RailOptions};
use ginlab::flow::{Flow, FlowError, Offer, Region, Target, run};
use std::error::Error;
use std::time::Duration;

type Rail = LibfabricRail;

/// Block `rank` of each buffer is filled; afterwards all are. In each step a rank passes on the block that came last, and the
/// immediate behind it says that it is there.
async fn all_gather(
    flow: &Flow<Rail>,
    mine: &Region<Rail>,
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
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let ranks = arguments.next().transpose()?.unwrap_or(4).max(1);
    let bytes = arguments.next().transpose()?.unwrap_or(1 << 20);
    println!("{}", gather(ranks, bytes)?);
    Ok(())
}

/// Gathers, checks every byte, and says what was done.
pub fn gather(ranks: u64, bytes: u64) -> Result<String, Box<dyn Error>> {
    let (device, _) = Device::open(Choice::Emulated, 0)?;
    let provider = choose_provider(Some("tcp"))?.provider;
    let domain = select_domains(&provider, 1, Reach::SameHost, &[], None, 0, 1)?.domains.remove(0);

    // What a launcher and a bootstrap do between machines.
    let mut flows = Vec::new();
    let mut buffers = Vec::new();
    let mut offers: Vec<Offer> = Vec::new();
    for rank in 0..ranks {
        let flow = Flow::new(vec![Rail::open(&domain, &RailOptions::default())?], Duration::from_secs(10));
        let buffer = device.allocate(Place::Host, (ranks * bytes) as usize)?;
        buffer.write((rank * bytes) as usize, &vec![rank as u8 + 1; bytes as usize])?;
        let region = flow.register(buffer, Access::SOURCE | Access::REMOTE_WRITE)?;
        offers.push(flow.offer(&[&region])?);
        flows.push(flow);
        buffers.push(region);
    }
    let mut targets = Vec::new();
    for rank in 0..ranks as usize {
        let next = &offers[(rank + 1) % ranks as usize];
        targets.push(Target::new(flows[rank].add_peer(next)?, next, 0)?);
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
    Ok(format!("{ranks} ranks gathered {bytes} B of each over {}:{}", domain.provider, domain.name))
}
