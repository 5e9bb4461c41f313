//! Tests a hostile peer, which attacks the sockets before authentication and after the handshake with the right token,
//! and the fabric with other peers' keys and immediates. Other peers must finish their work in the meantime.

use crate::common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::server::{ServeProcess, verified, with_token};
use crate::common::{TOO_LONG, run, skip, wait_for};
use ginlab::bootstrap::session::Session;
use ginlab::bootstrap::{Bootstrap, BootstrapError, BootstrapOptions};
use ginlab::cuda::{Device, DeviceChoice, MemoryLocation};
use ginlab::fabric::discover::{Reach, choose_provider, select_domains};
use ginlab::fabric::libfabric::{LibfabricRail, RailOptions};
use ginlab::fabric::{Access, RemoteRegion};
use ginlab::flow::{self, Flow, FlowError, Offer, Region, Target};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

/// Opens a connection on which a test waits at most `patience` for each answer.
fn connect(port: u16, patience: Duration) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(patience)).unwrap();
    stream
}

/// Returns all bytes received until the other side closes.
fn until_closed(stream: &mut TcpStream) -> Vec<u8> {
    let mut answer = Vec::new();
    // A reset also ends the connection.
    let _ = stream.read_to_end(&mut answer);
    answer
}

/// Stops the attackers even if the test has failed.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the start of a handshake: a connection's key and an invalid tag.
fn prefix() -> Vec<u8> {
    [&b"ginlab\r\n"[..], &4u32.to_le_bytes(), &[7; 32 + 16]].concat()
}

fn frame(kind: u8, payload_bytes: u32, payload: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0][..], &payload_bytes.to_le_bytes(), &0u64.to_le_bytes(), payload].concat()
}

const REFUSE: u8 = 3;
const PROOF: u8 = 10;

/// Opens `wanted` connections that send nothing, or only part of a handshake, and keeps them open.
fn idle(port: u16, wanted: usize) -> Vec<TcpStream> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let count = wanted.min(usize::try_from(hard).unwrap_or(usize::MAX).saturating_sub(200));
    if count < wanted {
        skip(&format!("idle connections: {} of {wanted}, `ulimit -Hn` is {hard}", wanted - count));
    }
    let begin = |number: usize| {
        let mut stream = connect(port, TOO_LONG);
        // The server may have closed the connection already.
        let _ = stream.write_all(&prefix()[..[0, 3, 59][number % 3]]);
        stream
    };
    (0..count).map(begin).collect()
}

#[test]
fn idle_connections_do_not_block_server() {
    let server = ServeProcess::start("-p tcp");
    let crowd = idle(server.1, 2000);
    for _ in 0..2 {
        verified(run(server.join("-b 4K -n 100 --csv -")));
    }
    // Repeats the check while more of them keep connecting.
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(idle(server.1, 20));
            }
        });
        let outcomes = [(); 2].map(|()| run(server.join("-b 4K -n 100 --csv -")));
        drop(stopping);
        outcomes.into_iter().for_each(verified);
    });
    drop(crowd);
    server.0.signal(Signal::SIGINT);
    let done = server.finish().expect(130);
    // The server reports the first eight connections, then the 16th, 32nd, 64th, and so on. The number of lines is thus
    // bounded.
    let lines = done.stderr.lines().filter(|line| line.starts_with("ginlab: refused ")).count();
    assert!((8..40).contains(&lines), "{lines} lines:\n{}", done.stderr);
    assert!(done.stderr.contains("it was silent for longest"), "{}", done.stderr);
}

#[test]
fn idle_connections_do_not_block_job() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    static NEVER: AtomicBool = AtomicBool::new(false);
    let options =
        || BootstrapOptions { timeout: Duration::from_secs(30), interrupt: &NEVER, ..BootstrapOptions::default() };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| Bootstrap::serve(listener, 2, "secret", options()));
        let crowd = idle(address.port(), 2000);
        let second = Bootstrap::join(&[address], 1, 2, "secret", options()).unwrap();
        assert_eq!((second.rank(), first.join().unwrap().unwrap().size()), (1, 2));
        drop(crowd);
    });
}

#[test]
fn handshake_time_limit_is_total() {
    let server = ServeProcess::start("-p tcp");
    let mut slow = connect(server.1, Duration::from_millis(250));
    // 60 bytes would take 15 s; a limit per byte would never expire.
    for byte in prefix() {
        let _ = slow.write_all(&[byte]);
        match slow.read(&mut [0; 1]) {
            Ok(0) => return,
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return,
            _ => {}
        }
    }
    panic!("the server heard all of it");
}

/// Returns everything that a connector sends, as recorded by a process in between.
fn recorded(server: &ServeProcess) -> Vec<u8> {
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, to) = (between.local_addr().unwrap().port(), server.1);
    let copy = |mut from: TcpStream, mut to: TcpStream| {
        let (mut seen, mut chunk) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = from.read(&mut chunk) {
            seen.extend(&chunk[..count]);
            let _ = to.write_all(&chunk[..count]);
        }
        let _ = to.shutdown(Shutdown::Write);
        seen
    };
    std::thread::scope(|scope| {
        let relay = scope.spawn(move || {
            let (client, target) = (between.accept().unwrap().0, connect(to, TOO_LONG));
            let (back, forth) = (target.try_clone().unwrap(), client.try_clone().unwrap());
            let answers = std::thread::spawn(move || copy(back, forth));
            let seen = copy(client, target);
            answers.join().unwrap();
            seen
        });
        verified(run(with_token("secret", &format!("join 127.0.0.1:{port} -b 64 -n 3 --csv -"))));
        relay.join().unwrap()
    })
}

#[test]
fn garbage_wrong_tokens_and_replays_are_rejected() {
    let server = ServeProcess::start("-p tcp");
    let replay = recorded(&server);
    assert!(!replay.windows(6).any(|window| window == b"secret"), "the token travels");
    let noise: Vec<u8> = (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let with = |more: &[u8]| [&prefix(), more].concat();
    let attacks = [
        noise.clone(),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        // The first attack has another version. The others send, after a wrong tag, noise, an invalid proof, a frame
        // that never ends, or a frame of the authenticated protocol.
        [&b"ginlab\r\n"[..], &1u32.to_le_bytes(), b"\x06\0secret"].concat(),
        with(&noise),
        with(&frame(PROOF, 32, &[0; 32])),
        with(&frame(PROOF, u32::MAX, &noise)),
        with(&frame(8, 2, b"{}")),
        replay.clone(),
    ];
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for attack in &attacks {
                    let mut stream = connect(server.1, TOO_LONG);
                    // The connection may be closed in the middle.
                    let _ = stream.write_all(attack);
                    let _ = stream.shutdown(Shutdown::Write);
                    let answer = until_closed(&mut stream);
                    // The attacker receives at most a refusal, because an unauthenticated peer must learn nothing. A
                    // replayed first message is answered, but the rest is encrypted with a key that the attacker does
                    // not have.
                    match attack == &replay {
                        true => assert!(answer.is_empty() || answer[0] == PROOF, "{}", answer.escape_ascii()),
                        false => {
                            assert!(kinds(&answer).iter().all(|kind| *kind == REFUSE), "{}", answer.escape_ascii())
                        }
                    }
                    assert!(!answer.windows(7).any(|window| window == b"changed"), "{}", answer.escape_ascii());
                }
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let stranger = run(with_token("guess", &format!("join 127.0.0.1:{}", server.1)));
        let outcomes = [(); 3].map(|()| run(server.join("-b 4K -n 500 --csv -")));
        wait_for(|| rounds.load(Ordering::Relaxed) > 1, "two rounds of attacks");
        drop(stopping);
        assert!(stranger.expect(1).complaint().contains("refused: it has a different job token"));
        outcomes.into_iter().for_each(verified);
    });
    server.0.signal(Signal::SIGINT);
    server.finish().expect(130);
}

/// Returns the kinds of the frames in an answer.
fn kinds(mut bytes: &[u8]) -> Vec<u8> {
    let mut kinds = Vec::new();
    while let Some(header) = bytes.get(..16) {
        kinds.push(header[0]);
        let label = u16::from_le_bytes([header[2], header[3]]) as usize;
        let payload = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        bytes = bytes.get(16 + label + payload..).unwrap_or_default();
    }
    kinds
}

#[derive(Debug, Deserialize)]
struct ServerHello {
    bytes: u64,
}

#[derive(Serialize)]
struct Joining {
    offer: Offer,
    write_bytes: u64,
}

#[derive(Clone, Debug, Deserialize)]
struct SlotGrant {
    offer: Offer,
    tag: u32,
}

#[derive(Serialize)]
struct WritesDone {
    writes: u64,
    extent: u64,
}

#[derive(Serialize)]
struct PeerVerdict {
    right: bool,
}

/// Joins as any peer does. Its rail stays open: otherwise the system would assign the port to the next peer, which the
/// server rejects while this one is connected.
async fn join(port: u16) -> Result<(Session, SlotGrant, Flow<LibfabricRail>), BootstrapError> {
    let mut visit = Session::connect(&format!("127.0.0.1:{port}"), "secret", TOO_LONG).await?;
    let hall: ServerHello = visit.hear("server").await?;
    let (flow, _) = rail(TOO_LONG);
    let offer = flow.offer(&[]).unwrap();
    visit.say("joining", &Joining { offer, write_bytes: hall.bytes.min(8) }).await?;
    let place = visit.hear("place").await?;
    Ok((visit, place, flow))
}

/// Leaves like a peer that has written nothing, so that its place is free immediately.
async fn leave(mut visit: Session) {
    visit.say("writes", &WritesDone { writes: 0, extent: 0 }).await.unwrap();
    let _: serde_json::Value = visit.hear("writes").await.unwrap();
    visit.say("verdict", &PeerVerdict { right: true }).await.unwrap();
    // The session has ended when the server has closed the connection.
    let _ = visit.hear::<()>("end").await;
}

/// Opens a rail of this process with registered memory.
fn rail(patience: Duration) -> (Flow<LibfabricRail>, Region<LibfabricRail>) {
    let provider = choose_provider(Some("tcp")).unwrap().provider;
    let domain = select_domains(&provider, 1, Reach::SameHost, &[], None, 0, 1).unwrap().domains.remove(0);
    let flow = Flow::new(vec![LibfabricRail::open(&domain, &RailOptions::default()).unwrap()], patience);
    let (device, _) = Device::open(DeviceChoice::Emulated, 0).unwrap();
    let region = flow.register(device.allocate(MemoryLocation::Host, 4096).unwrap(), Access::ALL).unwrap();
    region.buffer().write(0, &[0xBAu8; 4096]).unwrap();
    (flow, region)
}

/// Runs an operation to completion on a flow that has no other driver.
async fn driven<T>(flow: &Flow<LibfabricRail>, operation: impl Future<Output = T>) -> T {
    tokio::select! {
        biased;
        ended = operation => ended,
        () = flow.drive() => unreachable!("a driver does not end"),
    }
}

/// Writes to, or reads from, a region of the server that may belong to another peer.
async fn reach_for(place: &SlotGrant, region: RemoteRegion, at: u64, write: bool) -> Result<u64, FlowError> {
    // A rejected request may have no answer.
    let (flow, memory) = rail(Duration::from_secs(1));
    let offer = Offer { regions: vec![vec![region]], ..place.offer.clone() };
    let target = Target::new(flow.add_peer(&offer)?, &offer, 0)?;
    let reached = match write {
        true => flow.write_all(&memory, 0, &target, at, 8),
        false => flow.read_all(&memory, 0, &target, at, 8),
    };
    driven(&flow, reached).await
}

/// Runs one round of attacks over the fabric. Returns those that should have failed and succeeded.
async fn attack(port: u16) -> Vec<String> {
    let (gone, old, _rail_of_gone) = join(port).await.unwrap();
    let (here, own, _rail) = join(port).await.unwrap();
    leave(gone).await;
    let (mine, theirs) = (own.offer.regions[0][0], old.offer.regions[0][0]);
    let mut wrong = Vec::new();
    // The peer's own slot must be writable; otherwise the failures below would prove nothing.
    if let Err(error) = reach_for(&own, mine, 0, true).await {
        wrong.push(format!("its own place: {error}"));
    }
    let mut attempts = vec![
        ("the key of a place that it has left", theirs, 0, true),
        ("a read of that place", theirs, 0, false),
        ("a read of its own place", mine, 0, false),
        ("a write behind its own place", RemoteRegion { bytes: 1 << 40, ..mine }, mine.bytes, true),
        ("a write across the end of its own place", RemoteRegion { bytes: 1 << 40, ..mine }, mine.bytes - 4, true),
    ];
    let near = [mine.key.wrapping_add(1), mine.key.wrapping_sub(1)];
    let guesses = near.into_iter().chain(0..6).filter(|key| *key != mine.key);
    attempts.extend(guesses.map(|key| ("a guessed key", RemoteRegion { key, ..mine }, 0, true)));
    for (what, region, at, write) in attempts {
        if reach_for(&own, region, at, write).await.is_ok() {
            wrong.push(format!("{what} ({region:?} at {at})"));
        }
    }
    // Immediates that belong to other peers: a previous one, small numbers, and guesses.
    let (flow, memory) = rail(TOO_LONG);
    let target = Target::new(flow.add_peer(&own.offer).unwrap(), &own.offer, 0).unwrap();
    let tags = [old.tag, 0].into_iter().chain(1..64).chain((0..400u32).map(|i| i.wrapping_mul(2_654_435_761)));
    for tag in tags.filter(|tag| *tag != own.tag) {
        driven(&flow, flow.write_with_immediate(&memory, 0, &target, 0, 8, tag)).await.unwrap();
    }
    leave(here).await;
    wrong
}

#[test]
fn foreign_keys_and_immediates_are_rejected() {
    let server = ServeProcess::start("-p tcp --peers 4 --bytes 64K");
    let port = server.1;
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    let wrong = std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        let foe = scope.spawn(|| {
            flow::run(std::iter::empty::<Flow<LibfabricRail>>(), async {
                let mut wrong = Vec::new();
                while !stop.load(Ordering::Relaxed) && wrong.is_empty() {
                    wrong.extend(attack(port).await);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                wrong
            })
            .unwrap()
        });
        // The server's answer covers every byte and every count of the other peers.
        let outcomes = [(); 3].map(|()| run(server.join("-b 4K -n 3000 --csv -")));
        wait_for(|| rounds.load(Ordering::Relaxed) > 0 || foe.is_finished(), "a round of attacks");
        drop(stopping);
        outcomes.into_iter().for_each(verified);
        foe.join().unwrap()
    });
    assert_eq!(wrong, Vec::<String>::new());
    verified(run(server.join("-b 64K -n 10 --csv -")));
    server.0.signal(Signal::SIGINT);
    let done = server.finish().expect(130);
    assert!(done.stderr.contains(" immediates that are assigned to no connected peer"), "{}", done.stderr);
}

#[test]
fn malformed_messages_affect_only_their_authenticated_sender() {
    let mut server = ServeProcess::start("-p tcp --peers 8 --bytes 64K");
    let port = server.1;
    let busy = common::ProcessGroup::start(server.join("-b 4K -n 1000000000"));
    server.until("writing");
    let program = async {
        let visit = async || Session::connect(&format!("127.0.0.1:{port}"), "secret", TOO_LONG).await.unwrap();
        // Messages that are malformed, too large, too long, belong to another step, or contain numbers out of range.
        let mut hostile = visit().await;
        let _: ServerHello = hostile.hear("server").await.unwrap();
        hostile
            .say("joining", &Joining { offer: rail(TOO_LONG).0.offer(&[]).unwrap(), write_bytes: u64::MAX })
            .await
            .unwrap();
        let refused = hostile.hear::<SlotGrant>("place").await.unwrap_err().to_string();
        assert!(refused.contains("does not fit into a slot"), "{refused}");
        for (what, word) in [("joining", "\u{1b}[2J\u{1b}]0;owned\u{7}"), ("\u{1b}[31m", "")] {
            let mut hostile = visit().await;
            let _: ServerHello = hostile.hear("server").await.unwrap();
            hostile.say(what, &word).await.unwrap();
            hostile.hear::<SlotGrant>("place").await.unwrap_err();
        }
        // Bytes that are not encrypted: more than the longest message, and frames in plain text.
        for bytes in [frame(9, u32::MAX, &[0; 100]), vec![0xff; 70_000], frame(5, 0, b"")] {
            let mut hostile = visit().await;
            let _: ServerHello = hostile.hear("server").await.unwrap();
            let mut stream = hostile.into_stream().unwrap().into_std().unwrap();
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(TOO_LONG)).unwrap();
            let _ = stream.write_all(&bytes);
            until_closed(&mut stream);
        }
        let (mut hostile, _, _rail) = join(port).await.unwrap();
        hostile.say("writes", &WritesDone { writes: 0, extent: u64::MAX }).await.unwrap();
        let refused = hostile.hear::<serde_json::Value>("checksum").await.unwrap_err().to_string();
        assert!(refused.contains("exceed the slot"), "{refused}");
    };
    flow::run(std::iter::empty::<Flow<LibfabricRail>>(), program).unwrap();
    verified(run(server.join("-b 64K -n 10 --csv -")));
    busy.signal(Signal::SIGINT);
    busy.finish().expect(130);
    server.0.signal(Signal::SIGINT);
    let done = server.finish().expect(130);
    for text in [&done.stdout, &done.stderr] {
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }
}

/// Returns the port of a rail of the tcp provider, from its address: an IPv4 socket address in the system's format.
fn rail_port(place: &SlotGrant) -> u16 {
    let address = &place.offer.addresses[0];
    u16::from_be_bytes([address[2], address[3]])
}

/// libfabric owns the port and does not protect it: after such a flood the tcp provider of libfabric 1.17 accepts no
/// more connections, which ginlab cannot prevent. Existing connections and the server itself must continue.
#[test]
fn garbage_at_rail_port_does_not_end_run() {
    let mut server = ServeProcess::start("-p tcp --peers 4 --bytes 64K");
    let program = async {
        let (visit, place, _rail) = join(server.1).await.unwrap();
        leave(visit).await;
        place
    };
    let place = flow::run(std::iter::empty::<Flow<LibfabricRail>>(), program).unwrap();
    let busy = common::ProcessGroup::start(server.join("-b 4K -n 20000 --csv -"));
    server.until("writing");
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        scope.spawn(|| {
            let noise: Vec<u8> = (0..3000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
            let mut open = Vec::new();
            let port = (Ipv4Addr::LOCALHOST, rail_port(&place)).into();
            while !stop.load(Ordering::Relaxed) {
                for bytes in [&noise[..], b"GET / HTTP/1.1\r\n\r\n", &[0; 2000], &[0xff; 2000], b""] {
                    // The port may temporarily accept no more: with a full backlog the kernel would retry for two
                    // minutes.
                    let within = Duration::from_millis(50);
                    if let Ok(mut stream) = TcpStream::connect_timeout(&port, within) {
                        stream.set_write_timeout(Some(within)).unwrap();
                        let _ = stream.write_all(bytes);
                        open.push(stream);
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                }
                open.drain(..open.len().saturating_sub(50));
            }
        });
        wait_for(|| sent.load(Ordering::Relaxed) > 50, "fifty connections with garbage");
        verified(busy.finish());
        drop(stopping);
    });
    let visits = async {
        let (visit, _, _rail) = join(server.1).await.unwrap();
        leave(visit).await;
    };
    flow::run(std::iter::empty::<Flow<LibfabricRail>>(), visits).unwrap();
    server.0.signal(Signal::SIGINT);
    server.finish().expect(130);
}
