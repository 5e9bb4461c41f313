//! Attacks on the rails of ranks. The attacker has no token, but knows the locations of their endpoints and the memory
//! that their process has mapped. On a machine with one user, these are easy to find. Elsewhere, the attacker must
//! guess them. The attacker is a separate process, started by the tests in this directory and by
//! `scripts/tables/hostile.toml`, and attacks round after round until the target run has exited.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ginlab::fabric::any::{AnyRail, AnyRegion};
use ginlab::fabric::discover::{Domain, Reach, choose_provider, select_domains};
use ginlab::fabric::libfabric::{LibfabricRail, RailOptions};
use ginlab::fabric::verbs::{self, VerbsRail};
use ginlab::fabric::{Access, Completion, MemoryRange, Message, Messages, Post, Rail, RemoteRegion, Transfer, soft};
use nix::unistd::Pid;

use super::endpoints::{self, ProcessEndpoint};
use super::random::XorShift;
use crate::common::TOO_LONG;

/// `PID[,PID...] WAYS PROVIDER`: target processes (until the last of them has exited), attacks, and fabric. Attacks:
/// garbage, replay and flood on ports; keys, immediates and messages over the attacker's own rail.
pub const AIM: &str = "GINLAB_TEST_STRANGER";
/// Number of rounds after which the attacker exits [default: unlimited].
pub const ROUNDS: &str = "GINLAB_TEST_STRANGER_ROUNDS";
/// Milliseconds to sleep after each round [default: 0]: on one machine the attacker also takes CPU time from the run.
pub const REST: &str = "GINLAB_TEST_STRANGER_RESTS";

/// Number of requests to one endpoint over one rail.
const REQUESTS: usize = 64;
/// Bytes of the attacker's memory.
const BYTES: usize = 1 << 20;
/// Maximum wait for an answer, because a rejected request may have none.
const PATIENCE: Duration = Duration::from_millis(200);
/// Sleep between two polls while nothing can be posted or no target exists: the attacked runs share the core.
const LOOKING: Duration = Duration::from_micros(200);
/// Maximum wait for a connection: with a full backlog it would take minutes.
const CONNECTING: Duration = Duration::from_millis(50);
/// Maximum wait for an answer on a connection.
const ANSWERING: Duration = Duration::from_millis(5);
/// Number of idle connections kept open.
const CROWD: usize = 50;

impl XorShift {
    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    fn noise(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|_| (self.next() >> 24) as u8).collect()
    }
}

/// Results of the attacker's requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttackTotals {
    /// Requests accepted by the fabric.
    pub posted: u64,
    /// Requests that failed, as they should.
    pub refused: u64,
    /// Writes and reads of memory that succeeded with guessed keys.
    pub reached: u64,
    /// Immediates without bytes, and messages, that the target's fabric has accepted.
    pub taken: u64,
    /// Connections with garbage, or without data.
    pub connections: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttackKind {
    Write,
    Read,
    Immediate,
    Message,
}

/// The attacker's rail and memory.
struct Own {
    // This field is dropped before the rail.
    region: AnyRegion,
    rail: AnyRail,
    _memory: Box<[u8]>,
}

impl Own {
    fn open(domain: &Domain) -> Option<Own> {
        let options = |messages| RailOptions { messages, ..RailOptions::default() };
        let of_libfabric = |with| LibfabricRail::open(domain, &options(with)).ok().map(AnyRail::Libfabric);
        let mut rail = match verbs::is_asked(&domain.provider) {
            true => AnyRail::Verbs(VerbsRail::open(&domain.name, REQUESTS, None).ok()?),
            false => [true, false].into_iter().find_map(of_libfabric)?,
        };
        let mut memory = vec![0xBA; BYTES].into_boxed_slice();
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the memory is on the heap and dropped after the region (field order).
        let region =
            unsafe { rail.register(MemoryRange { address, bytes: BYTES, cuda_device: None }, Access::ALL) }.ok()?;
        Some(Own { region, rail, _memory: memory })
    }

    /// Sends requests of these kinds to one endpoint, and counts their results.
    fn strike(&mut self, at: &ProcessEndpoint, kinds: &[AttackKind], random: &mut XorShift, tally: &mut AttackTotals) {
        let Ok(peer) = self.rail.address().and_then(|own| self.rail.add_peer(&at.address(&own))) else { return };
        let (mut sent, mut open, began) = (Vec::new(), 0, Instant::now());
        // A provider that is still connecting accepts no requests.
        while began.elapsed() < PATIENCE && (sent.len() < REQUESTS || open > 0) {
            let (number, kind) = (sent.len() as u64, random.pick(kinds));
            if sent.len() < REQUESTS && self.post(peer, kind, number, at, random) {
                sent.push((number, kind));
                open += 1;
                tally.posted += 1;
            } else {
                std::thread::sleep(LOOKING);
            }
            if !self.poll(&mut sent, &mut open, tally) {
                return;
            }
        }
    }

    fn post(&mut self, peer: usize, kind: AttackKind, token: u64, at: &ProcessEndpoint, random: &mut XorShift) -> bool {
        if kind == AttackKind::Message {
            let message = Message { offset: 0, bytes: random.pick(&[0, 1, 8, 64, 4096, 8192]), token };
            // SAFETY: the memory stays valid and is not changed.
            return matches!(unsafe { self.rail.send(&self.region, peer, &message) }, Ok(Post::Accepted));
        }
        // Over tcp keys have 64 random bits. A NIC's have 32, of which 14 are random (crates/soft_efa/src/memory.rs),
        // so an attacker with unlimited requests finds one. To keep the tests deterministic, these keys name unused
        // entries of the NIC's table.
        let key = match (&at.place, random.below(2)) {
            (endpoints::RailAddress::Pair(..), _) => {
                ((4096 + random.below((1 << 18) - 4096)) << 14 | random.below(1 << 14)) as u64
            }
            (endpoints::RailAddress::Port(_), 0) => random.next(),
            (endpoints::RailAddress::Port(_), _) => random.below(1 << 12) as u64,
        };
        let bytes = if kind == AttackKind::Immediate { 0 } else { random.pick(&[1, 8, 64, 4096, BYTES as u64]) };
        // Addresses of the target process, offsets into regions, and random numbers.
        let base = match random.below(3) {
            0 => at.mapped.get(random.below(at.mapped.len())).copied().unwrap_or_default(),
            1 => 0,
            _ => random.next(),
        };
        let transfer = Transfer {
            local_offset: 0,
            peer,
            remote: RemoteRegion { key, base, bytes: u64::MAX },
            remote_offset: random.pick(&[0, 0, 64, 4096, 1 << 20, 1 << 40]),
            bytes,
            immediate: (kind == AttackKind::Immediate || kind == AttackKind::Write && random.below(2) == 0)
                .then(|| random.next() as u32 >> random.pick(&[0, 0, 8, 16, 24])),
            token,
            more: false,
        };
        // SAFETY: the attacker's memory stays valid; access to the target's memory is what is tested.
        let posted = unsafe {
            match kind {
                AttackKind::Read => self.rail.read(&self.region, &transfer),
                _ => self.rail.write(&self.region, &transfer),
            }
        };
        matches!(posted, Ok(Post::Accepted))
    }

    /// Processes completions. Returns whether the rail can still be used.
    fn poll(&mut self, sent: &mut [(u64, AttackKind)], open: &mut usize, tally: &mut AttackTotals) -> bool {
        let mut completions = Vec::new();
        let is_well = self.rail.poll(&mut completions).is_ok();
        for completion in completions {
            let kind = |token: u64| sent.iter().find(|(of, _)| *of == token).map(|(_, kind)| *kind);
            match completion {
                Completion::Done { token } => {
                    *open = open.saturating_sub(1);
                    match kind(token) {
                        Some(AttackKind::Write | AttackKind::Read) => tally.reached += 1,
                        _ => tally.taken += 1,
                    }
                }
                Completion::Failed { token: Some(_), .. } => {
                    *open = open.saturating_sub(1);
                    tally.refused += 1;
                }
                _ => {}
            }
        }
        is_well
    }
}

fn connect(port: u16) -> Option<TcpStream> {
    let stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), CONNECTING).ok()?;
    stream.set_write_timeout(Some(CONNECTING)).ok()?;
    stream.set_read_timeout(Some(ANSWERING)).ok()?;
    Some(stream)
}

/// Returns the start of a connection of the tcp provider, recorded from a rail that connects to this process.
fn greeting(domain: &Domain) -> Option<Vec<u8>> {
    let mut own = Own::open(domain)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    listener.set_nonblocking(true).ok()?;
    let here = ProcessEndpoint {
        pid: Pid::this(),
        place: endpoints::RailAddress::Port(listener.local_addr().ok()?.port()),
        mapped: Vec::new(),
    };
    let address = here.address(&own.rail.address().ok()?);
    let peer = own.rail.add_peer(&address).ok()?;
    let began = Instant::now();
    let mut stream = loop {
        own.post(peer, AttackKind::Write, 0, &here, &mut XorShift(1));
        let _ = own.rail.poll(&mut Vec::new());
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(_) if began.elapsed() > TOO_LONG => return None,
            Err(_) => std::thread::yield_now(),
        }
    };
    stream.set_nonblocking(true).ok()?;
    let (mut said, mut chunk) = (Vec::new(), [0; 4096]);
    // The provider waits for an answer after its first bytes.
    while began.elapsed() < TOO_LONG && said.is_empty() {
        let _ = own.rail.poll(&mut Vec::new());
        if let Ok(count) = stream.read(&mut chunk) {
            said.extend(&chunk[..count]);
        }
    }
    Some(said)
}

/// Sends bytes to a port that are not its protocol, incomplete, or too many.
fn garbage(port: u16, random: &mut XorShift, tally: &mut AttackTotals) {
    let noise = random.noise(3000);
    for bytes in [&noise[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 2000], &[0xff; 2000], b""] {
        if let Some(mut stream) = connect(port) {
            let _ = stream.write_all(bytes);
            tally.connections += 1;
        }
    }
}

/// Opens connections like the provider, followed by other bytes; or with a corrupted start.
fn replay(port: u16, greeting: &[u8], random: &mut XorShift, tally: &mut AttackTotals) {
    for _ in 0..4 {
        let Some(mut stream) = connect(port) else { continue };
        let mut first = greeting.to_vec();
        if random.below(2) == 0 && !first.is_empty() {
            let at = random.below(first.len());
            first[at] = random.next() as u8;
        }
        let _ = stream.write_all(&first);
        let _ = stream.read(&mut [0; 4096]);
        // Headers of messages start with version, operation and flags: small numbers reach more code of the parser than
        // large ones.
        let most = random.pick(&[2, 8, 0x100]);
        let mut words: Vec<u8> = (0..random.pick(&[16, 64, 3000])).map(|_| random.below(most) as u8).collect();
        // The last byte of the length in tcp's header of 16 bytes, set so that no message is ever complete. A complete
        // one reaches rxm, which looks up the connection that it names without a check. An invalid number crashes the
        // process (SECURITY.md), and a valid one is treated as a rank's.
        words[15] |= 1;
        let _ = stream.write_all(&words);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read(&mut [0; 4096]);
        tally.connections += 1;
    }
}

/// Attacks until the targets have exited, and reports the results after each round.
pub fn strike(aim: &str) {
    let mut words = aim.splitn(3, ' ');
    let (pids, ways, provider) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
    let targets: Vec<Pid> = pids.split(',').map(|pid| Pid::from_raw(pid.parse().unwrap())).collect();
    let last = *targets.last().unwrap();
    // For software NICs, the environment has preloaded them.
    let name = match provider {
        "tcp" => provider,
        cards => {
            soft::load_preloaded(cards).unwrap();
            if verbs::is_asked(cards) { cards } else { "efa" }
        }
    };
    let has = |way: &str| ways.split(',').any(|named| named == way);
    let chosen = choose_provider(Some(name)).unwrap().provider;
    let domain = select_domains(&chosen, 1, Reach::SameHost, &[], None, 0, 1).unwrap().domains.remove(0);
    let mut kinds = Vec::new();
    for (way, of) in [
        ("keys", &[AttackKind::Write, AttackKind::Read][..]),
        ("immediates", &[AttackKind::Immediate]),
        ("messages", &[AttackKind::Message]),
    ] {
        if has(way) {
            kinds.extend(of);
        }
    }
    let first = (has("replay") && name == "tcp").then(|| greeting(&domain).unwrap());
    let (mut random, mut tally, mut round, mut crowd) = (XorShift(0x5eed), AttackTotals::default(), 0u64, Vec::new());
    let number = |name| std::env::var(name).ok().map(|text| text.parse().unwrap());
    let (rounds, rest) = (number(ROUNDS).unwrap_or(u64::MAX), number(REST).map(Duration::from_millis));
    let began = Instant::now();
    // The starting process ends the attacker; otherwise it ends itself.
    while endpoints::is_there(last) && round < rounds && began.elapsed() < 2 * TOO_LONG {
        let aims: Vec<ProcessEndpoint> = targets.iter().flat_map(|target| endpoints::of(*target, name)).collect();
        for at in &aims {
            if let endpoints::RailAddress::Port(port) = at.place {
                if has("garbage") {
                    garbage(port, &mut random, &mut tally);
                }
                if let Some(first) = &first {
                    replay(port, first, &mut random, &mut tally);
                }
                if has("flood") {
                    crowd.extend(connect(port));
                    crowd.drain(..crowd.len().saturating_sub(CROWD));
                }
            }
            if !kinds.is_empty()
                && let Some(mut own) = Own::open(&domain)
            {
                own.strike(at, &kinds, &mut random, &mut tally);
            }
        }
        if aims.is_empty() {
            std::thread::sleep(LOOKING);
            continue;
        }
        round += 1;
        let AttackTotals { posted, refused, reached, taken, connections } = tally;
        let most = aims.iter().map(|at| endpoints::resident(at.pid)).max().unwrap_or_default();
        println!(
            "stranger: round={round} endpoints={} posted={posted} refused={refused} reached={reached} taken={taken} \
             connections={connections} resident={most}",
            aims.len()
        );
        rest.into_iter().for_each(std::thread::sleep);
    }
}
