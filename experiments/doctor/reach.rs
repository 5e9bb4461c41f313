//! A small write from every rank to every other rank on each rail, verified by the receiver.

use super::meet::{Met, OwnRail};
use crate::error::Failure;
use crate::runner::{drive, in_event_loop};
use ginlab::bootstrap::Bootstrap;
use ginlab::flow::Target;
use ginlab::measure::pattern;
use ginlab::signals;
use std::time::{Duration, Instant};

/// Immediate of each write.
const HERE: u32 = 0x6e_0d0c;
/// Bytes per write.
pub const BYTES: usize = 256;

fn payload(from: usize, rail: usize) -> [u8; BYTES] {
    let mut bytes = [0u8; BYTES];
    pattern::fill(&mut bytes, pattern::seed(from as u32, rail as u32, 1));
    bytes
}

/// Writes to every peer on each rail, waits for the peers' writes, and compares the bytes. Returns a line for each
/// write that failed.
pub fn run(met: &Met, limit: Duration, ranks: &mut Bootstrap) -> Result<Vec<String>, Failure> {
    let rank = ranks.rank();
    let hosts: Vec<String> = ranks.members().iter().map(|member| member.host.clone()).collect();
    let mut failed = met.rejected.clone();
    for (index, rail) in met.rails.iter().enumerate() {
        rail.source.buffer().write(0, &payload(rank, index))?;
    }
    in_event_loop(async {
        for rail in &met.rails {
            rail.flow.expect_immediates(HERE);
            drive(&rail.flow);
        }
        let mut writes = Vec::new();
        for (index, rail) in met.rails.iter().enumerate() {
            for (peer, target) in met.peers(rank, index) {
                writes.push((peer, index, write(rail, target, rank)));
            }
        }
        for (peer, index, write) in writes {
            if let Err(error) = write.await {
                let (host, name) = (&hosts[peer], &met.rails[index].name);
                failed.push(format!("rank {peer} ({host}) over {name} (rail {index}): {error}"));
            }
        }
        // A peer whose writes fail needs as long as this rank to detect this.
        let deadline = Instant::now() + limit * 2;
        for (index, rail) in met.rails.iter().enumerate() {
            let expected = met.peers(rank, index).count() as u64;
            if expected > 0 && rail.flow.failure().is_none() && !arrived(rail, expected, deadline, ranks).await? {
                failed.push(format!("writes of peers to {} (rail {index}): not all have arrived", rail.name));
            }
        }
        Ok(())
    })?;
    let complete = failed.is_empty();
    for (index, rail) in met.rails.iter().enumerate() {
        // Failed writes are already listed.
        for (from, _) in met.peers(rank, index).filter(|_| complete) {
            let mut arrived = [0u8; BYTES];
            rail.inbox.buffer().read(from * BYTES, &mut arrived)?;
            if arrived != payload(from, index) {
                failed.push(format!("from rank {from} ({}) on rail {index}: wrong bytes", hosts[from]));
            }
        }
    }
    Ok(failed)
}

fn write(rail: &OwnRail, target: &Target, rank: usize) -> impl Future<Output = Result<u64, ginlab::flow::FlowError>> {
    rail.flow.write_on(0, &rail.source, 0, target, (rank * BYTES) as u64, BYTES as u64, Some(HERE))
}

/// Waits until the peers' writes have arrived. Returns whether they have before `deadline`.
async fn arrived(rail: &OwnRail, expected: u64, deadline: Instant, ranks: &mut Bootstrap) -> Result<bool, Failure> {
    let mut signal = std::pin::pin!(rail.flow.wait_immediate(HERE, expected));
    loop {
        match tokio::time::timeout(Duration::from_millis(100), signal.as_mut()).await {
            Ok(result) => return Ok(result.is_ok()),
            Err(_) if signals::interrupted() => return Err(Failure::Interrupted),
            Err(_) if Instant::now() >= deadline => return Ok(false),
            Err(_) => ranks.check_peers()?,
        }
    }
}
