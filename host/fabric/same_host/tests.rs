//! Tests of two rails of one process that write to each other's shared memory, and of a process that exits.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

use super::*;
use ginlab_cuda::{Buffer, Device, MemoryLocation};
use proptest::prelude::*;
use std::time::{Duration, Instant};

const BYTES: usize = 1 << 20;

struct Node {
    rail: SameHostRail,
    region: SameHostRegion,
    memory: Buffer,
}

fn node(place: MemoryLocation, movers: Option<Arc<CopyThreads>>) -> Node {
    let memory = Device::Emulated.allocate(place, BYTES).unwrap();
    let mut rail = SameHostRail::open("near", movers).unwrap();
    // SAFETY: the memory outlives the region. The order of fields does not matter, because nothing is in flight when a
    // test ends.
    let region = unsafe {
        rail.register(MemoryRange { address: memory.address(), bytes: BYTES, cuda_device: None }, Access::ALL).unwrap()
    };
    Node { rail, region, memory }
}

fn pair(movers: Option<Arc<CopyThreads>>) -> (Node, Node) {
    // A region that is only a source may be in any memory.
    let (mut a, mut b) = (node(MemoryLocation::Host, movers.clone()), node(MemoryLocation::File, movers));
    let addresses = [a.rail.address().unwrap(), b.rail.address().unwrap()];
    a.rail.insert_peers(&addresses).unwrap();
    b.rail.insert_peers(&addresses).unwrap();
    (a, b)
}

fn transfer(to: &Node, at: u64, bytes: u64, token: u64) -> Transfer {
    Transfer::new(at, (1, to.rail.remote(&to.region), at), bytes, token)
}

#[allow(clippy::mut_from_ref, reason = "the bytes are shared with the other rank, not the node's")]
fn bytes(node: &Node) -> &mut [u8] {
    // SAFETY: only one such reference is held at a time, and tests access the bytes while nothing is in flight.
    unsafe { node.memory.host_bytes() }.unwrap()
}

/// Polls until `count` completions have arrived, for at most a minute.
fn completions(rail: &mut SameHostRail, count: usize) -> Vec<Completion> {
    let (mut all, ends) = (Vec::new(), Instant::now() + Duration::from_secs(60));
    while all.len() < count {
        rail.poll(&mut all).unwrap();
        assert!(Instant::now() < ends, "{} of {count} completions after a minute", all.len());
        std::thread::yield_now();
    }
    all
}

fn write(node: &mut Node, t: &Transfer) -> Result<Post, FabricError> {
    // SAFETY: tests do not modify the source until the completion.
    unsafe { node.rail.write(&node.region, t) }
}

/// Tests sizes around the chunk size and the threshold, copied by the posting thread and by copy threads. Checks the
/// bytes and their surroundings.
#[test]
fn bytes_arrive_whole_and_nowhere_else() {
    for movers in [None, Some(Arc::new(CopyThreads::start(3, Stores::Streamed).unwrap()))] {
        let (mut a, mut b) = pair(movers);
        let sizes = [1, 7, 64, 4096, 8192, 8193, 70_001, 131_072, 131_073, 500_000, BYTES as u64 - 100];
        for (token, size) in sizes.into_iter().enumerate() {
            let (at, token) = (token as u64 * 9, token as u64);
            bytes(&a).iter_mut().enumerate().for_each(|(i, byte)| *byte = (i as u64 * 7 + token * 13) as u8);
            bytes(&b).fill(0xa5);
            let there = transfer(&b, at, size, token);
            assert_eq!(write(&mut a, &there).unwrap(), Post::Accepted);
            let done = completions(&mut a.rail, 1);
            assert!(matches!(done[..], [Completion::Done { token: of }] if of == token), "{done:?}");
            let (from, to) = (at as usize, (at + size) as usize);
            assert!(bytes(&b)[from..to] == bytes(&a)[from..to], "{size} B");
            let around = bytes(&b);
            assert!(around[..from].iter().chain(&around[to..]).all(|byte| *byte == 0xa5), "around {size} B");
            // Reads other bytes back.
            bytes(&b)[from..to].fill(0x11);
            // SAFETY: the destination is not accessed until the completion.
            unsafe { a.rail.read(&a.region, &there) }.unwrap();
            completions(&mut a.rail, 1);
            assert!(bytes(&a)[from..to].iter().all(|byte| *byte == 0x11), "{size} B read");
        }
        let mut left = Vec::new();
        b.rail.poll(&mut left).unwrap();
        assert!(left.is_empty());
    }
}

/// Bytes of large writes, copied by copy threads, are visible when the immediate is polled.
#[test]
fn immediate_follows_bytes_of_copy_threads() {
    let (mut a, mut b) = pair(Some(Arc::new(CopyThreads::start(2, Stores::Cached).unwrap())));
    for round in 1..20u32 {
        bytes(&a).fill(round as u8);
        let with = Transfer { immediate: Some(round), ..transfer(&b, 0, BYTES as u64 - 64, u64::from(round)) };
        assert_eq!(write(&mut a, &with).unwrap(), Post::Accepted);
        let ends = Instant::now() + Duration::from_secs(60);
        let (mut done, mut told) = (Vec::new(), Vec::new());
        while told.is_empty() {
            a.rail.poll(&mut done).unwrap();
            b.rail.poll(&mut told).unwrap();
            assert!(Instant::now() < ends);
        }
        assert!(matches!(told[..], [Completion::Immediate { value }] if value == round), "{told:?}");
        assert!(bytes(&b)[..BYTES - 64].iter().all(|byte| *byte == round as u8), "round {round}");
        if done.is_empty() {
            completions(&mut a.rail, 1);
        }
    }
}

#[test]
fn immediate_follows_bytes_and_full_queue_returns_again() {
    let (mut a, mut b) = pair(None);
    let mut sent = 0;
    loop {
        let with = Transfer { immediate: Some(sent), ..transfer(&b, 0, u64::from(sent % 2) * 8, 0) };
        if write(&mut a, &with).unwrap() == Post::Again {
            break;
        }
        sent += 1;
        assert!(sent < 100_000, "a queue without end");
    }
    let values: Vec<u32> = completions(&mut b.rail, sent as usize)
        .into_iter()
        .map(|completion| match completion {
            Completion::Immediate { value } => value,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(values, (0..sent).collect::<Vec<_>>());
    assert_eq!(completions(&mut a.rail, sent as usize).len(), sent as usize);
    let again = Transfer { immediate: Some(1), ..transfer(&b, 0, 0, 0) };
    assert_eq!(write(&mut a, &again).unwrap(), Post::Accepted);
}

#[test]
fn invalid_transfers_are_rejected_in_one_line() {
    let (mut a, b) = pair(None);
    let (good, end) = (transfer(&b, 0, 8, 0), BYTES as u64);
    let unmapped = a.rail.remote(&a.region);
    let elsewhere = RemoteRegion { key: good.remote.key + 1, ..good.remote };
    let longer = RemoteRegion { bytes: 2 * end, ..good.remote };
    for (what, bad) in [
        ("offset", Transfer { local_offset: end - 7, ..good }),
        ("offset", Transfer { local_offset: u64::MAX, ..good }),
        ("offset", Transfer { remote_offset: end - 7, ..good }),
        ("offset", Transfer { remote_offset: u64::MAX - 3, ..good }),
        ("offset", Transfer { remote: longer, remote_offset: end, ..good }),
        ("no such peer", Transfer { peer: 2, ..good }),
        ("not in memory that other processes can map", Transfer { peer: 0, remote: unmapped, ..good }),
        ("transfer of 8 B", Transfer { remote: elsewhere, ..good }),
    ] {
        let error = write(&mut a, &bad).expect_err(what).to_string();
        assert!(error.contains(what) && error.lines().count() == 1, "{what}: {error}");
    }
    for address in [vec![], vec![0; 19], vec![0; 21]] {
        assert!(a.rail.add_peer(&address).unwrap_err().to_string().contains("instead of 20"));
    }
    let mut other = a.rail.address().unwrap();
    other[12] ^= 1;
    assert!(a.rail.add_peer(&other).unwrap_err().to_string().contains("in another container"));
    a.rail.remove_peer(1).unwrap();
    assert!(write(&mut a, &good).is_err() && a.rail.remove_peer(1).is_err());
}

#[test]
fn peer_with_exited_process_is_named() {
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let (mut a, b) = pair(None);
    let mut address = a.rail.address().unwrap();
    address[..4].copy_from_slice(&child.id().to_le_bytes());
    let peer = a.rail.add_peer(&address).unwrap();
    a.rail.peers.look();
    assert!(!a.rail.peers.get(peer).unwrap().has_ended);
    child.kill().unwrap();
    child.wait().unwrap();
    let mut none = Vec::new();
    (0..=LOOK_EVERY).for_each(|_| a.rail.poll(&mut none).unwrap());
    let error = write(&mut a, &Transfer { peer, ..transfer(&b, 0, 8, 0) }).unwrap_err().to_string();
    assert!(error.contains(&format!("peer {peer}")) && error.contains("exited"), "{error}");
    let signal = Transfer { peer, immediate: Some(1), ..transfer(&b, 0, 0, 0) };
    assert!(write(&mut a, &signal).unwrap_err().to_string().contains("exited"));
}

/// Only the transfers to a dead peer fail: immediates of other peers are still taken.
#[test]
fn dead_peer_fails_only_its_transfers() {
    use nix::fcntl::{FcntlArg, FdFlag, fcntl};
    let (mut a, mut b) = pair(Some(Arc::new(CopyThreads::start(2, Stores::Cached).unwrap())));
    // The peer is a child process that has the files of `b` under the same descriptors.
    let (address, memory) = (b.rail.address().unwrap(), b.region.file.clone().unwrap());
    let inbox = i32::from_le_bytes(address[4..8].try_into().unwrap());
    for descriptor in [inbox, memory.name().descriptor] {
        // SAFETY: both descriptors are open for the lifetime of `b`.
        let descriptor = unsafe { std::os::fd::BorrowedFd::borrow_raw(descriptor) };
        fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    }
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let peer = a.rail.add_peer(&[&child.id().to_le_bytes(), &address[4..]].concat()).unwrap();
    for token in 0..3 {
        let t = Transfer { peer, immediate: Some(7), ..transfer(&b, 0, 64 << 10, token) };
        assert_eq!(write(&mut a, &t).unwrap(), Post::Accepted);
    }
    child.kill().unwrap();
    child.wait().unwrap();
    a.rail.peers.look();
    assert_eq!(
        write(&mut b, &Transfer { peer: 0, immediate: Some(9), ..transfer(&a, 0, 0, 0) }).unwrap(),
        Post::Accepted
    );
    let (mut failed, mut values) = (Vec::new(), Vec::new());
    for completion in completions(&mut a.rail, 4) {
        match completion {
            Completion::Failed { token, error } => {
                assert!(error.to_string().contains("exited"), "{error}");
                failed.extend(token);
            }
            Completion::Immediate { value } => values.push(value),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((failed, values), (vec![0, 1, 2], vec![9]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Many writes of various sizes are in flight concurrently: each byte is from the right write, and each token
    /// completes once.
    #[test]
    fn writes_side_by_side_do_not_mix(sizes in prop::collection::vec(1u64..200_000, 1..5), threads in 1usize..4) {
        let (mut a, b) = pair(Some(Arc::new(CopyThreads::start(threads, Stores::Streamed).unwrap())));
        bytes(&a).iter_mut().enumerate().for_each(|(i, byte)| *byte = (i as u64).wrapping_mul(0x9e37_79b9).to_le_bytes()[2]);
        let mut at = 0;
        for (token, size) in sizes.iter().enumerate() {
            let there = transfer(&b, at, *size, token as u64);
            prop_assert_eq!(write(&mut a, &there).unwrap(), Post::Accepted);
            at += size;
        }
        let mut tokens: Vec<u64> = completions(&mut a.rail, sizes.len()).into_iter().map(|completion| match completion {
            Completion::Done { token } => token,
            other => panic!("{other:?}"),
        }).collect();
        tokens.sort_unstable();
        prop_assert_eq!(tokens, (0..sizes.len() as u64).collect::<Vec<_>>());
        prop_assert!(bytes(&b)[..at as usize] == bytes(&a)[..at as usize]);
        prop_assert!(bytes(&b)[at as usize..].iter().all(|byte| *byte == 0));
    }
}
