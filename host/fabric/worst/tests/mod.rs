//! Tests of rails of one process that write to each other's memory.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

mod landed;
mod messages;
mod order;
mod watch;

use super::*;
use crate::Message;
use ginlab_cuda::{Buffer, Device, MemoryLocation};

/// Number of polls after which a test fails. It is many times the longest delay.
const PATIENCE: usize = 10_000_000;

struct Node {
    rail: WorstRail,
    region: WorstRegion,
    memory: Buffer,
}

fn node(spec: &WorstSpec, rank: u32, bytes: usize) -> Node {
    let memory = Device::Emulated.allocate(MemoryLocation::File, bytes).unwrap();
    let mut rail = WorstRail::open(spec, Who { rank, ..Who::default() }, true).unwrap();
    let registered = MemoryRange { address: memory.address(), bytes, cuda_device: None };
    // SAFETY: the memory outlives the region. The order of fields does not matter, because rails access nothing once a
    // test ends.
    let region = unsafe { rail.register(registered, Access::ALL) }.unwrap();
    Node { rail, region, memory }
}

/// Creates `COUNT` nodes, each of which has all nodes as peers, under their numbers.
fn nodes<const COUNT: usize>(spec: &str, bytes: usize) -> [Node; COUNT] {
    let spec = spec.parse().unwrap();
    connected(std::array::from_fn(|rank| node(&spec, rank as u32, bytes)))
}

fn connected<const COUNT: usize>(mut all: [Node; COUNT]) -> [Node; COUNT] {
    let addresses = all.each_ref().map(|node: &Node| node.rail.address().unwrap());
    all.iter_mut().for_each(|node| node.rail.insert_peers(&addresses).unwrap());
    all
}

/// The poison byte identifies the run's seed.
#[test]
fn each_seed_has_rubbish_of_its_own() {
    let of = |seed| node(&WorstSpec { seed, ..WorstSpec::default() }, 0, 64).rail.poison();
    let all: std::collections::BTreeSet<_> = (0..32).map(of).collect();
    assert!(all.len() == 32 && !all.contains(&None) && !all.contains(&Some(0)));
    assert_eq!(node(&WorstSpec { poison: false, ..WorstSpec::default() }, 0, 64).rail.poison(), None);
}

fn put(to: &Node, peer: usize, from: u64, at: u64, bytes: u64, token: u64) -> Transfer {
    Transfer::new(from, (peer, to.rail.remote(&to.region), at), bytes, token)
}

/// Posts until the rail accepts the write.
fn write(node: &mut Node, t: &Transfer) -> Result<(), FabricError> {
    for _ in 0..=AGAINS {
        // SAFETY: the test studies concurrent changes of the memory.
        if unsafe { node.rail.write(&node.region, t) }? == Post::Accepted {
            return Ok(());
        }
    }
    panic!("more than {AGAINS} \"again\" in a row");
}

#[allow(clippy::mut_from_ref, reason = "the bytes are shared with the other rank, not the node's")]
fn bytes_of(node: &Node) -> &mut [u8] {
    // SAFETY: only one such reference is held at a time, and rails access the memory only in their calls, on this
    // thread.
    unsafe { node.memory.host_bytes() }.unwrap()
}

fn poll(node: &mut Node) -> Vec<Completion> {
    let mut completions = Vec::new();
    node.rail.poll(&mut completions).unwrap();
    completions
}

/// Polls the nodes alternately until `enough` returns `true`. `enough` receives each completion and the index of its
/// node.
fn until<const COUNT: usize>(
    nodes: &mut [Node; COUNT],
    mut enough: impl FnMut(&mut [Node; COUNT], usize, Option<Completion>) -> bool,
) {
    for turn in 0..PATIENCE {
        let number = turn % COUNT;
        for completion in poll(&mut nodes[number]) {
            if enough(nodes, number, Some(completion)) {
                return;
            }
        }
        if enough(nodes, number, None) {
            return;
        }
    }
    panic!("not seen in {PATIENCE} polls");
}

/// Returns the error of the first transfer that fails, or `None` if `transfers` transfers complete successfully.
fn first_failure<const COUNT: usize>(nodes: &mut [Node; COUNT], transfers: usize) -> Option<FabricError> {
    let (mut done, mut failure) = (0, None);
    until(nodes, |_, _, completion| {
        match completion {
            Some(Completion::Done { .. }) => done += 1,
            Some(Completion::Failed { error, .. }) => failure = Some(*error),
            _ => {}
        }
        done == transfers || failure.is_some()
    });
    failure
}
