//! `--peers --rates`: rates between all pairs of nodes on each rail, in the rounds of a tournament.

use super::DoctorArgs;
use super::meet::{Met, OwnRail};
use crate::error::Failure;
use crate::runner::{drive, in_event_loop};
use ginlab::bootstrap::Bootstrap;
use ginlab::doctor::tournament::{self, Rates, TournamentNode};
use ginlab::flow::Target;
use std::time::{Duration, Instant};

/// Bytes of each write.
pub const CHUNK: usize = 1 << 20;
/// Immediate of the write that follows the measured ones.
const DONE: u32 = 0x6e_0d0d;
/// Bytes of the write with the immediate [`DONE`].
const DONE_BYTES: u64 = 64;
/// Time for the completion of this write, which the peer may process only in its next round.
const GRACE: Duration = Duration::from_secs(1);

/// Rates of this rank to each peer by rail, in Gb/s: 0 if the transfer failed, `None` if there was none.
type Measured = Vec<Vec<Option<f32>>>;

/// Measures with every other node, one after another. Returns the rates of all nodes on rank 0, and `None` on other
/// ranks.
pub fn run(met: &Met, args: &DoctorArgs, ranks: &mut Bootstrap) -> Result<Option<Rates>, Failure> {
    let (rank, size) = (ranks.rank(), ranks.size());
    met.rails.iter().for_each(|rail| rail.flow.expect_immediates(DONE));
    let mut mine: Measured = vec![Vec::new(); size];
    for round in 0..tournament::rounds(size) {
        let alive: Vec<bool> = met.rails.iter().map(|rail| rail.flow.failure().is_none()).collect();
        let all = ranks.all_gather_values(&alive, "start of a round")?;
        let Some(peer) = tournament::partner(rank, round, size) else { continue };
        let both = |rail: usize| alive[rail] && all[peer].get(rail) == Some(&true);
        mine[peer] = vec![None; met.rails.len()];
        let rails: Vec<(usize, &OwnRail, &Target)> = met
            .rails
            .iter()
            .enumerate()
            .filter(|(rail, _)| both(*rail))
            .filter_map(|(index, rail)| Some((index, rail, rail.targets.get(peer)?.as_ref()?)))
            .collect();
        for (rail, rate) in with_peer(&rails, args)? {
            mine[peer][rail] = Some(rate);
        }
    }
    let Some(rates) = ranks.gather_values(&mine, "rates")? else { return Ok(None) };
    let members = ranks.members();
    let node = |rank: usize| {
        let host = &members[rank].host;
        // Several ranks of one host are separate nodes only in a test on one machine.
        let shared = members.iter().filter(|member| member.host == *host).count() > 1;
        let host = if shared { format!("{host}/{rank}") } else { host.clone() };
        TournamentNode { host, nics: met.of_ranks[rank].clone().unwrap_or_default() }
    };
    Ok(Some(Rates { nodes: (0..size).map(node).collect(), rates }))
}

/// Writes to a peer on all rails at the same time, while the peer does the same. Returns the rate of each rail over its
/// own time.
fn with_peer(rails: &[(usize, &OwnRail, &Target)], args: &DoctorArgs) -> Result<Vec<(usize, f32)>, Failure> {
    let (writes, bytes) = (args.bytes.div_ceil(CHUNK as u64).max(1), args.bytes.min(CHUNK as u64));
    let limit = args.job.meet.timeout;
    let mut rates = Vec::new();
    in_event_loop(async {
        let begun = Instant::now();
        let tasks: Vec<_> = rails
            .iter()
            .map(|(index, rail, target)| {
                drive(&rail.flow);
                let (flow, source, target, index) = (rail.flow.clone(), rail.source.clone(), (*target).clone(), *index);
                tokio::task::spawn_local(async move {
                    let write = |bytes, immediate| flow.write_on(0, &source, 0, &target, 0, bytes, immediate);
                    let posted: Vec<_> = (0..writes).map(|_| write(bytes, None)).collect();
                    for write in posted {
                        if write.await.is_err() {
                            return (index, 0.0);
                        }
                    }
                    let rate = (writes * bytes) as f64 * 8.0 / begun.elapsed().as_secs_f64() / 1e9;
                    // The peer drives its rail until this write arrives, and this rank drives its rail until that of
                    // the peer arrives.
                    let _ = tokio::time::timeout(GRACE, write(DONE_BYTES.min(bytes), Some(DONE))).await;
                    let _ = tokio::time::timeout(limit * 2, flow.wait_immediate(DONE, 1)).await;
                    (index, rate as f32)
                })
            })
            .collect();
        for task in tasks {
            rates.push(task.await.map_err(|error| Failure::Run(format!("a transfer panicked: {error}")))?);
        }
        Ok(())
    })?;
    Ok(rates)
}
