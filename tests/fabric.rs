//! Rails over real providers, only on this machine: loopback (127.0.0.1) and shared memory.

#![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

mod skips;

use std::time::{Duration, Instant};

use ginlab::fabric::discover::{self, Domain, Reach};
use ginlab::fabric::libfabric::BareLoop;
use ginlab::fabric::libfabric::{Level, LibfabricRail, LibfabricRegion, RailOptions};
use ginlab::fabric::testing::faulty::{FaultyRail, RailFaults};
use ginlab::fabric::{
    Access, Completion, FabricError, MemoryRange, Message, Messages, Post, Rail, RemoteRegion, Transfer,
};

const DEADLINE: Duration = Duration::from_secs(20);
const MIB: usize = 1 << 20;
/// Length of a transfer that needs many packets, more than a provider sends at a time.
const LONG: usize = 256 << 10;

/// Bounds a loop that might not end.
struct Deadline(Instant);

impl Deadline {
    fn new() -> Self {
        Self(Instant::now() + DEADLINE)
    }

    fn check(&self, what: &str) {
        assert!(Instant::now() < self.0, "{what}: not within {DEADLINE:?}");
        std::thread::yield_now();
    }
}

/// Returns the domain for tests of a provider, or the reason that there is none.
fn domain(provider: &str) -> Result<Domain, String> {
    let choice = discover::choose_provider(Some(provider)).map_err(|error| error.to_string())?;
    let plan = discover::select_domains(&choice.provider, 1, Reach::SameHost, &[], None, 0, 1);
    Ok(plan.map_err(|error| error.to_string())?.domains.remove(0))
}

struct Node<R: Rail> {
    region: R::Region,
    rail: R,
    memory: Box<[u8]>,
    completions: Vec<Completion>,
}

impl<R: Rail> Node<R> {
    fn new(mut rail: R, bytes: usize) -> Self {
        let mut memory = vec![0u8; bytes].into_boxed_slice();
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the memory is on the heap and dropped after the region (field order).
        let region = unsafe { rail.register(MemoryRange { address, bytes, cuda_device: None }, Access::ALL) }.unwrap();
        Self { region, rail, memory, completions: Vec::new() }
    }

    fn remote(&self) -> RemoteRegion {
        self.rail.remote(&self.region)
    }

    fn poll(&mut self) {
        self.rail.poll(&mut self.completions).unwrap();
    }
}

type Pair = (Node<LibfabricRail>, Node<LibfabricRail>);

fn open(provider: &str, options: &RailOptions) -> Option<LibfabricRail> {
    match domain(provider) {
        Ok(domain) => Some(LibfabricRail::open(&domain, options).unwrap()),
        Err(why) => {
            skips::skip(&why.to_string());
            None
        }
    }
}

fn pair_with(provider: &str, bytes: usize, options: &RailOptions) -> Option<Pair> {
    let (a, b) = (open(provider, options)?, open(provider, options)?);
    let (mut a, mut b) = (Node::new(a, bytes), Node::new(b, bytes));
    let addresses = [a.rail.address().unwrap(), b.rail.address().unwrap()];
    if domain(provider).unwrap().family.is_ip() {
        // The address is a sockaddr_in: family, port, address. Tests never leave the machine.
        addresses.iter().for_each(|address| assert_eq!(address[4..8], [127, 0, 0, 1], "{provider}"));
    }
    a.rail.insert_peers(&addresses).unwrap();
    b.rail.insert_peers(&addresses).unwrap();
    Some((a, b))
}

fn pair(provider: &str, bytes: usize) -> Option<Pair> {
    pair_with(provider, bytes, &RailOptions::default())
}

/// Returns a transfer to peer 1 at the same offset on both sides.
fn transfer(remote: RemoteRegion, offset: u64, bytes: u64, token: u64) -> Transfer {
    Transfer {
        local_offset: offset,
        peer: 1,
        remote,
        remote_offset: offset,
        bytes,
        immediate: None,
        token,
        more: false,
    }
}

/// Posts the transfer and waits for its token. Polls both sides, because the target also has to make progress.
fn finish(a: &mut Node<LibfabricRail>, b: &mut Node<LibfabricRail>, write: bool, t: &Transfer) {
    let deadline = Deadline::new();
    loop {
        // SAFETY: the memory is not accessed until the completion, below.
        let post = unsafe { if write { a.rail.write(&a.region, t) } else { a.rail.read(&a.region, t) } };
        if post.unwrap() == Post::Accepted {
            break;
        }
        a.poll();
        b.poll();
        deadline.check("posting");
    }
    loop {
        a.poll();
        b.poll();
        if let Some(completion) = a.completions.pop() {
            assert!(matches!(completion, Completion::Done { token } if token == t.token), "{completion:?}");
            return;
        }
        deadline.check(&format!("completion of {t:?}"));
    }
}

fn immediates(node: &mut Node<LibfabricRail>, count: usize) -> Vec<u32> {
    let deadline = Deadline::new();
    while node.completions.len() < count {
        node.poll();
        deadline.check("immediates");
    }
    let value = |completion| match completion {
        Completion::Immediate { value } => value,
        other => panic!("{other:?}"),
    };
    node.completions.drain(..).map(value).collect()
}

/// Tests every size, with and without an immediate, byte by byte. The adjacent bytes must not change.
fn writes_and_reads(provider: &str) {
    let Some((mut a, mut b)) = pair(provider, 2 * LONG) else { return };
    let mut token = 0;
    for bytes in [0usize, 1, 3, 64, 4097, LONG] {
        for (immediate, more) in [(None, false), (Some(0xdead_beef), false), (None, true), (Some(7), true)] {
            if bytes == 0 && immediate.is_none() {
                continue;
            }
            token += 1;
            let offset = 4096 + token as usize;
            a.memory.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7 + token as usize * 13) as u8);
            b.memory.fill(0xa5);
            let remote = b.remote();
            let t = Transfer { immediate, more, ..transfer(remote, offset as u64, bytes as u64, token) };
            finish(&mut a, &mut b, true, &t);
            let end = offset + bytes;
            assert!(b.memory[offset..end] == a.memory[offset..end], "{provider}: {t:?} wrong");
            assert!(
                b.memory[..offset].iter().chain(&b.memory[end..]).all(|byte| *byte == 0xa5),
                "{provider}: neighbours"
            );
            assert_eq!(immediates(&mut b, usize::from(immediate.is_some())), Vec::from_iter(immediate));
        }
    }
    for (bytes, more) in [(1usize, false), (64, true), (4097, false), (LONG, true)] {
        token += 1;
        b.memory.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 11 + bytes) as u8);
        a.memory.fill(0x5a);
        let remote = b.remote();
        let t = Transfer { more, ..transfer(remote, 100, bytes as u64, token) };
        finish(&mut a, &mut b, false, &t);
        let end = 100 + bytes;
        assert!(a.memory[100..end] == b.memory[100..end], "{provider}: read of {bytes} B wrong");
        assert!(
            a.memory[..100].iter().chain(&a.memory[end..]).all(|byte| *byte == 0x5a),
            "{provider}: read neighbours"
        );
    }
    assert!(b.completions.is_empty() && a.rail.outstanding() == 0);
}

#[test]
fn tcp_writes_and_reads() {
    assert!(domain("tcp").is_ok(), "tcp works everywhere");
    writes_and_reads("tcp");
}

#[test]
fn net_writes_and_reads() {
    writes_and_reads("net");
}

#[test]
fn shm_writes_and_reads() {
    writes_and_reads("shm");
}

#[test]
fn sockets_writes_and_reads() {
    writes_and_reads("sockets");
}

#[test]
fn local_rails_use_loopback() {
    let domain = domain("tcp").unwrap();
    assert_eq!((domain.name.as_str(), domain.address), ("lo", Some("127.0.0.1".parse().unwrap())));
    let rail = LibfabricRail::open(&domain, &RailOptions::default()).unwrap();
    // The address is a sockaddr_in: family, port, address.
    assert_eq!(rail.address().unwrap()[4..8], [127, 0, 0, 1]);
    assert!(rail.name().starts_with("tcp") && rail.name().ends_with(":lo"), "{}", rail.name());
    assert!(rail.limits().immediate_bytes >= 4 && rail.limits().max_outstanding > 0);
}

/// Only selects domains, and opens nothing outside the loopback.
#[test]
fn network_plan_excludes_loopback() {
    match discover::select_domains("tcp", 2, Reach::Network, &[], None, 0, 1) {
        Ok(plan) => assert!(plan.domains.iter().all(|domain| domain.address.is_some_and(|a| !a.is_loopback()))),
        Err(error) => assert!(error.to_string().contains("available: "), "{error}"),
    }
    let error = discover::select_domains("tcp", 0, Reach::Network, &[], None, 0, 1).unwrap_err();
    assert!(error.to_string().contains("1 to 64"), "{error}");
}

#[test]
fn out_of_range_transfers_are_rejected_before_posting() {
    let (mut a, b) = pair("tcp", 4096).unwrap();
    let remote = b.remote();
    let good = transfer(remote, 0, 8, 1);
    let other = Node::new(open("tcp", &RailOptions::default()).unwrap(), 4096);
    for (what, bad) in [
        ("the local region of 4096 B", Transfer { local_offset: 4090, ..good }),
        ("the local region of 4096 B", Transfer { local_offset: u64::MAX, ..good }),
        ("the peer's region of 4096 B", Transfer { remote_offset: 4089, ..good }),
        ("the peer's region of 4096 B", Transfer { remote_offset: u64::MAX - 3, ..good }),
        ("offset 0 and 4097 B", Transfer { bytes: 4097, ..good }),
        ("there are 2 peers", Transfer { peer: 2, ..good }),
        ("neither bytes nor an immediate", Transfer { bytes: 0, ..good }),
    ] {
        // SAFETY: the request is rejected before anything is posted.
        let error = unsafe { a.rail.write(&a.region, &bad) }.expect_err(what).to_string();
        assert!(error.contains(what) && error.lines().count() == 1, "{error}");
        // SAFETY: the request is rejected before anything is posted.
        unsafe { a.rail.read(&a.region, &bad) }.expect_err(what);
    }
    // SAFETY: the request is rejected before anything is posted.
    let error = unsafe { a.rail.write(&other.region, &good) }.expect_err("a foreign region").to_string();
    assert!(error.contains("another rail"), "{error}");
    assert_eq!(a.rail.outstanding(), 0);
}

#[test]
fn removed_peer_is_rejected() {
    let (mut a, b) = pair("tcp", 4096).unwrap();
    let good = transfer(b.remote(), 0, 8, 1);
    assert_eq!(good.peer, 1);
    a.rail.remove_peer(1).unwrap();
    // SAFETY: both requests are rejected before anything is posted.
    let refused = unsafe { [a.rail.write(&a.region, &good), a.rail.read(&a.region, &good)] };
    for refused in refused {
        let error = refused.expect_err("the peer was removed").to_string();
        assert!(error.contains("peer 1 was removed") && error.lines().count() == 1, "{error}");
    }
    // SAFETY: the request is rejected before anything is posted.
    let refused = unsafe { bare_loop(&mut a, (1, b.remote()), 8, 1, DEADLINE) }.unwrap_err().to_string();
    assert!(refused.contains("no such peer"), "{refused}");
    assert!(a.rail.remove_peer(1).is_err());
    assert_eq!(a.rail.outstanding(), 0);
    // The other peer still exists.
    let own = Transfer { peer: 0, ..transfer(a.remote(), 8, 8, 2) };
    let (mut posted, deadline) = (Post::Again, Deadline::new());
    while a.completions.is_empty() {
        if posted == Post::Again {
            // SAFETY: the memory lives until the end of the test and is not accessed.
            posted = unsafe { a.rail.write(&a.region, &own) }.unwrap();
        }
        a.poll();
        deadline.check("the write to itself");
    }

    let options = RailOptions { messages: true, ..RailOptions::default() };
    let Some((mut a, _b)) = pair_with("tcp", 4096, &options) else { return };
    a.rail.remove_peer(1).unwrap();
    let message = Message { offset: 0, bytes: 8, token: 1 };
    // SAFETY: the request is rejected before anything is posted.
    let error = unsafe { a.rail.send(&a.region, 1, &message) }.expect_err("the peer was removed").to_string();
    assert!(error.contains("peer 1 was removed"), "{error}");
}

#[test]
fn unknown_provider_error_lists_available_ones() {
    for error in [
        discover::choose_provider(Some("efx")).unwrap_err(),
        discover::list_domains("efx").unwrap_err(),
        discover::select_domains("efx", 1, Reach::Network, &[], None, 0, 1).unwrap_err(),
    ] {
        let line = error.to_string();
        assert!(
            line.contains("unknown provider \"efx\"") && line.contains("tcp") && line.lines().count() == 1,
            "{line}"
        );
    }
    assert!(discover::list_providers().unwrap().iter().any(|provider| provider.name == "tcp"));
}

#[test]
fn default_provider_has_required_capabilities() {
    let choice = discover::choose_provider(None).unwrap();
    assert!(choice.reason.starts_with("default: "), "{choice:?}");
    let domains = discover::list_domains(&choice.provider).unwrap();
    assert!(domains.iter().all(|domain| domain.immediate_bytes >= 4), "{domains:?}");
}

#[test]
fn invalid_memory_is_rejected() {
    let mut rail = open("tcp", &RailOptions::default()).unwrap();
    for (address, bytes) in [(0, 64), (4096, 0), (u64::MAX - 7, 64)] {
        // SAFETY: the request is rejected before anything is registered.
        let error =
            unsafe { rail.register(MemoryRange { address, bytes, cuda_device: None }, Access::ALL) }.unwrap_err();
        assert!(error.to_string().contains("empty or wraps"), "{error}");
    }
}

#[test]
fn unsupported_cuda_memory_error_has_remedy() {
    let mut memory = vec![0u8; 4096];
    let address = memory.as_mut_ptr().expose_provenance() as u64;
    for provider in ["tcp", "shm"] {
        let options = RailOptions { cuda_memory: true, ..Default::default() };
        let Some(mut rail) = open(provider, &options) else { continue };
        // SAFETY: host memory declared as a device's: the registration is rejected, or dropped immediately.
        let error = unsafe { rail.register(MemoryRange { address, bytes: 4096, cuda_device: Some(0) }, Access::ALL) };
        // A libfabric with CUDA and a device may reject it for other reasons; here there is no device.
        let line = error.expect_err("no CUDA here").to_string();
        assert!(line.contains("stage through pinned host memory"), "{line}");
        assert!(!rail.limits().cuda_memory, "{provider}");
    }
}

#[test]
fn full_queue_returns_again_without_loss() {
    let options = RailOptions { max_outstanding: Some(32), ..Default::default() };
    for provider in ["tcp", "shm"] {
        for options in [RailOptions::default(), options.clone()] {
            let Some((mut a, mut b)) = pair_with(provider, MIB, &options) else { continue };
            let (count, remote, deadline) = (6000u64, b.remote(), Deadline::new());
            let (mut posted, mut again, mut most) = (0, 0u64, 0);
            let mut seen = vec![false; count as usize];
            let mut done = 0;
            while done < count {
                while posted < count {
                    let t = transfer(remote, posted * 8, 8, posted);
                    // SAFETY: the source is not written during the test.
                    match unsafe { a.rail.write(&a.region, &t) }.unwrap() {
                        Post::Accepted => posted += 1,
                        Post::Again => {
                            again += 1;
                            break;
                        }
                    }
                }
                most = most.max(a.rail.outstanding());
                a.poll();
                b.poll();
                for completion in a.completions.drain(..) {
                    let Completion::Done { token } = completion else { panic!("{completion:?}") };
                    assert!(!std::mem::replace(&mut seen[token as usize], true), "token {token} twice");
                    done += 1;
                }
                deadline.check("all completions");
            }
            assert!(again > 0 && most <= a.rail.limits().max_outstanding, "{provider}: {again} {most}");
            assert_eq!(a.rail.outstanding(), 0);
        }
    }
}

#[test]
fn four_endpoints_on_one_domain_do_not_mix() {
    let plan = discover::select_domains("tcp", 4, Reach::SameHost, &[], None, 0, 1).unwrap();
    assert_eq!((plan.domains.len(), plan.distinct), (4, 1));
    assert!(plan.note.unwrap().starts_with("4 endpoints share the one domain lo"));
    let mut pairs: Vec<_> = (0..4).map(|_| pair("tcp", 4096).unwrap()).collect();
    for (rail, (a, b)) in pairs.iter_mut().enumerate() {
        a.memory.fill(rail as u8 + 1);
        let t = Transfer { immediate: Some(rail as u32), ..transfer(b.remote(), 0, 4096, rail as u64) };
        finish(a, b, true, &t);
    }
    for (rail, (_, b)) in pairs.iter_mut().enumerate() {
        assert!(b.memory.iter().all(|byte| *byte == rail as u8 + 1));
        assert_eq!(immediates(b, 1), [rail as u32]);
        b.poll();
        assert!(b.completions.is_empty());
    }
}

#[test]
fn drop_order_is_safe() {
    for provider in ["tcp", "shm"] {
        for order in 0..3 {
            let Some((a, mut b)) = pair(provider, 4096) else { continue };
            // The memory outlives all other objects in each order.
            let Node { region, mut rail, memory, .. } = a;
            let t = Transfer { peer: 1, ..transfer(b.remote(), 0, 8, 9) };
            let deadline = Deadline::new();
            // SAFETY: the memory lives until the end of the block.
            while unsafe { rail.write(&region, &t) }.unwrap() == Post::Again {
                rail.poll(&mut Vec::new()).unwrap();
                b.poll();
                deadline.check("posting");
            }
            let mut completions = Vec::new();
            while completions.is_empty() {
                rail.poll(&mut completions).unwrap();
                b.poll();
                deadline.check("completion");
            }
            match order {
                0 => {
                    drop(region);
                    drop(rail);
                    drop(b);
                }
                1 => {
                    // The target is dropped first, the rail before its region.
                    drop(b);
                    drop(rail);
                    drop(region);
                }
                _ => {
                    let kept: LibfabricRegion = region;
                    drop(rail);
                    drop(b);
                    drop(kept);
                }
            }
            drop(memory);
        }
    }
}

#[test]
fn invalid_peer_addresses_are_rejected() {
    let mut rail = open("tcp", &RailOptions::default()).unwrap();
    for address in [vec![], vec![2, 0, 0], vec![0; 17]] {
        let error = rail.insert_peers(&[address]).unwrap_err().to_string();
        assert!(error.contains("fi_av_insert of peer 0") && error.contains("instead of 16"), "{error}");
    }
    if let Some(mut rail) = open("shm", &RailOptions::default()) {
        assert!(rail.insert_peers(&[b"fi_shm://no-end".to_vec()]).is_err());
        assert!(rail.insert_peers(&[vec![]]).is_err());
    }
}

#[test]
fn vanished_peer_fails_with_hint() {
    let (mut a, mut b) = pair("tcp", 4096).unwrap();
    let remote = b.remote();
    finish(&mut a, &mut b, true, &transfer(remote, 0, 8, 0));
    drop(b);
    let deadline = Deadline::new();
    let error = loop {
        // SAFETY: the memory is not accessed.
        match unsafe { a.rail.write(&a.region, &transfer(remote, 0, 8, 1)) } {
            Err(error) => break error,
            Ok(_) => a.poll(),
        }
        if let Some(Completion::Failed { token, error }) = a.completions.pop() {
            assert_eq!(token, Some(1));
            break *error;
        }
        deadline.check("the error");
    };
    let line = error.to_string();
    assert!(line.contains("fi_write of 8 B to peer 1") && line.contains("security group"), "{line}");
}

#[test]
fn wrong_key_fails_only_transfer() {
    let (mut a, mut b) = pair("tcp", 4096).unwrap();
    let remote = RemoteRegion { key: 0x7777, ..b.remote() };
    let deadline = Deadline::new();
    // SAFETY: the memory is not accessed.
    while unsafe { a.rail.write(&a.region, &transfer(remote, 0, 8, 5)) }.unwrap() == Post::Again {
        a.poll();
        b.poll();
        deadline.check("posting");
    }
    loop {
        a.poll();
        // The target may also report the rejected transfer. It must only remain usable.
        let _ = b.rail.poll(&mut b.completions);
        if let Some(completion) = a.completions.pop() {
            let Completion::Failed { token: Some(5), error } = completion else { panic!("{completion:?}") };
            assert!(error.to_string().contains("fi_write of 8 B to peer 1"), "{error}");
            break;
        }
        deadline.check("the failure");
    }
    assert!(b.memory.iter().all(|byte| *byte == 0));
}

#[test]
fn idle_poll_returns_immediately() {
    let (mut a, _b) = pair("tcp", 4096).unwrap();
    let start = Instant::now();
    for _ in 0..1000 {
        a.poll();
    }
    assert!(start.elapsed() < Duration::from_secs(5) && a.completions.is_empty());
}

#[test]
fn transmit_level_opens_and_moves_bytes() {
    let options = RailOptions { level: Level::Transmit, ..Default::default() };
    let (mut a, mut b) = pair_with("tcp", 4096, &options).unwrap();
    assert_eq!(a.rail.level(), Level::Transmit);
    a.memory.fill(3);
    let t = Transfer { immediate: Some(1), ..transfer(b.remote(), 0, 4096, 2) };
    finish(&mut a, &mut b, true, &t);
    assert_eq!(immediates(&mut b, 1), [1], "the immediate comes after the data");
    assert!(b.memory.iter().all(|byte| *byte == 3));
}

#[test]
fn faults_can_wrap_real_rail() {
    let (a, mut b) = pair("tcp", 4096).unwrap();
    let Node { region, rail, memory, .. } = a;
    let mut rail =
        FaultyRail::new(rail, RailFaults { again_first: 5, fail_completions: vec![2], ..Default::default() });
    let deadline = Deadline::new();
    let (mut token, mut again, mut completions) = (0, 0, Vec::new());
    while completions.len() < 3 {
        if token < 3 {
            // SAFETY: the memory is not accessed and outlives the region.
            match unsafe { rail.write(&region, &transfer(b.remote(), 0, 8, token)) }.unwrap() {
                Post::Accepted => token += 1,
                Post::Again => again += 1,
            }
        }
        rail.poll(&mut completions).unwrap();
        b.poll();
        deadline.check("three completions");
    }
    assert!(again >= 5);
    assert_eq!(completions.iter().filter(|completion| matches!(completion, Completion::Failed { .. })).count(), 1);
    drop((region, memory));
}

/// Sends the same window over the rail, for comparison with the bare loop.
fn rail_loop(a: &mut Node<LibfabricRail>, remote: RemoteRegion, size: usize, count: usize) -> f64 {
    let deadline = Deadline::new();
    let (mut posted, mut done) = (0, 0);
    let start = Instant::now();
    while done < count {
        while posted < count && posted - done < 64 {
            let t = transfer(remote, 0, size as u64, posted as u64);
            // SAFETY: the memory is not accessed.
            if unsafe { a.rail.write(&a.region, &t) }.unwrap() == Post::Again {
                break;
            }
            posted += 1;
        }
        a.poll();
        done += a.completions.len();
        a.completions.clear();
        assert!(Instant::now() < deadline.0);
    }
    start.elapsed().as_secs_f64()
}

#[test]
fn bare_loop_and_rail_move_equal_bytes() {
    side_by_side(3, [(8, 500), (65536, 50)]);
}

/// Prints a comparison; run by `cargo test --release --test fabric -- --ignored --nocapture measure`.
#[test]
#[ignore = "a measurement, for a quiet machine"]
fn measure_rail_against_bare_loop() {
    side_by_side(9, [(8, 20_000), (65536, 2000)]);
}

/// Runs the bare loop to a peer.
///
/// # Safety
/// The requirements of [`LibfabricRail::bare_writes`] apply.
unsafe fn bare_loop(
    a: &mut Node<LibfabricRail>,
    (peer, remote): (usize, RemoteRegion),
    bytes: usize,
    count: usize,
    deadline: Duration,
) -> Result<f64, FabricError> {
    let run = BareLoop { peer, remote, bytes: bytes as u64, count: count as u64, deadline };
    // SAFETY: the caller upholds the requirements of `bare_writes`.
    unsafe { a.rail.bare_writes(&a.region, &run) }
}

/// Alternates between the bare loop and the rail, while the target polls on its own thread. Prints the ratio, but
/// asserts only that both complete: with two shared cores the speeds are not significant.
fn side_by_side(repeats: usize, sizes: [(usize, usize); 2]) {
    for provider in ["tcp", "net", "shm", "sockets"] {
        let Some((mut a, mut b)) = pair(provider, MIB) else { continue };
        let remote = b.remote();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let deadline = Instant::now() + 4 * DEADLINE;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) && Instant::now() < deadline {
                    b.rail.poll(&mut b.completions).unwrap();
                }
            });
            for (size, count) in sizes {
                let count = if provider == "sockets" { count / 10 + 1 } else { count };
                a.memory[..size].fill(size as u8 | 1);
                let mut ratios = Vec::new();
                let (mut bare_best, mut rail_best) = (f64::MAX, f64::MAX);
                for _ in 0..repeats {
                    // SAFETY: both regions stay registered, and the source is not written.
                    let bare = unsafe { bare_loop(&mut a, (1, remote), size, count, DEADLINE) }.unwrap();
                    let rail = rail_loop(&mut a, remote, size, count);
                    ratios.push(bare / rail);
                    (bare_best, rail_best) = (bare_best.min(bare), rail_best.min(rail));
                }
                ratios.sort_by(f64::total_cmp);
                let rate = |seconds: f64| (count * size) as f64 / seconds / 1e9;
                eprintln!(
                    "{provider} {size} B: bare {:.3} us {:.3} GB/s, rail {:.3} us {:.3} GB/s, ratio {:.3} (median)",
                    bare_best / count as f64 * 1e6,
                    rate(bare_best),
                    rail_best / count as f64 * 1e6,
                    rate(rail_best),
                    ratios[repeats / 2]
                );
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(b.memory[..8].iter().all(|byte| *byte == (65536usize as u8 | 1)), "{provider}");
    }
}

#[test]
fn bare_loop_is_bounded_and_checked() {
    let (mut a, b) = pair("tcp", 4096).unwrap();
    let remote = b.remote();
    for (peer, size, words) in [(2, 8, "no such peer"), (1, 0, "size is 0"), (1, 4097, "does not fit")] {
        // SAFETY: the request is rejected before anything is posted.
        let error = unsafe { bare_loop(&mut a, (peer, remote), size, 1, DEADLINE) }.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    // The target is not polled, so delivery is never confirmed.
    let short = Duration::from_millis(50);
    // SAFETY: the regions live until the end, and the source is not accessed.
    let error = unsafe { bare_loop(&mut a, (1, remote), 8, 100, short) }.unwrap_err().to_string();
    assert!(error.contains("does the target poll?"), "{error}");
    // SAFETY: the request is rejected before anything is posted.
    let error = unsafe { bare_loop(&mut a, (1, remote), 8, 1, short) }.unwrap_err().to_string();
    assert!(error.contains("outstanding"), "{error}");
}
/// If the target does not poll, a write either stays incomplete or its data has arrived. `quiet` relies on this.
#[test]
fn delivered_write_has_arrived() {
    for provider in ["tcp", "net", "shm", "sockets"] {
        let Some((mut a, mut b)) = pair(provider, MIB) else { continue };
        let remote = b.remote();
        // Establishes the connection, which requires polling both sides.
        finish(&mut a, &mut b, true, &transfer(remote, 0, 8, 0));
        for (token, size) in [8usize, 3000, 65536, MIB].into_iter().enumerate() {
            a.memory.fill(token as u8 + 1);
            let t = transfer(remote, 0, size as u64, token as u64);
            // SAFETY: the memory is not accessed until the completion.
            assert_eq!(unsafe { a.rail.write(&a.region, &t) }.unwrap(), Post::Accepted);
            for _ in 0..1000 {
                a.poll();
            }
            let deadline = Deadline::new();
            while a.completions.is_empty() {
                a.poll();
                if a.completions.is_empty() {
                    b.poll();
                }
                deadline.check("completion");
            }
            assert!(b.memory[..size] == a.memory[..size], "{provider}: {size} B complete before they arrived");
            a.completions.clear();
        }
    }
}
