//! Tests with a man in the middle that records, splits and changes the bytes of a connection.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::session::{Session, SessionListener};
use super::{Bootstrap, BootstrapError, BootstrapOptions};

const TOKEN: &str = "a token of tests";
const LONG: Duration = Duration::from_secs(30);
const FORTH: u8 = 1;
const BACK: u8 = 2;
const CHANGED: &str = "a message was changed, lost or repeated in transit";

/// Forwards one connection.
#[derive(Clone, Default)]
struct Middle {
    /// Bytes that each side has sent.
    forth: Arc<Mutex<Vec<u8>>>,
    back: Arc<Mutex<Vec<u8>>>,
    /// Number of bytes forwarded at a time, or 0 for as many as arrive.
    cut: usize,
    /// Direction in which the next bytes are corrupted.
    spoil: Arc<AtomicU8>,
}

impl Middle {
    /// Returns an address that forwards to `to`.
    fn between(&self, to: SocketAddr) -> SocketAddr {
        let (listener, address) = listener();
        let middle = self.clone();
        std::thread::spawn(move || {
            let (one, other) = (listener.accept().unwrap().0, TcpStream::connect(to).unwrap());
            let (back, forth) = (other.try_clone().unwrap(), one.try_clone().unwrap());
            let answers = middle.clone();
            std::thread::spawn(move || answers.pass(BACK, back, forth));
            middle.pass(FORTH, one, other);
        });
        address
    }

    fn pass(&self, direction: u8, mut from: TcpStream, mut to: TcpStream) {
        to.set_nodelay(true).unwrap();
        let record = if direction == FORTH { &self.forth } else { &self.back };
        let mut chunk = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut chunk) {
            let bytes = &mut chunk[..count];
            record.lock().unwrap().extend(&*bytes);
            if self.spoil.compare_exchange(direction, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                bytes[count - 1] ^= 0x20;
            }
            let cut = if self.cut == 0 { count } else { self.cut };
            if bytes.chunks(cut).any(|piece| to.write_all(piece).is_err()) {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }

    fn spoil(&self, direction: u8) {
        self.spoil.store(direction, Ordering::Relaxed);
    }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn options() -> BootstrapOptions {
    static NEVER: AtomicBool = AtomicBool::new(false);
    BootstrapOptions { timeout: LONG, interrupt: &NEVER, ..BootstrapOptions::default() }
}

/// Runs `body` on two ranks that connect through `middle`. Returns both results.
fn ranks<T: Send>(middle: &Middle, body: impl Fn(Bootstrap) -> T + Sync) -> (T, T) {
    let (listener, address) = listener();
    let through = middle.between(address);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| body(Bootstrap::join(&[through], 1, 2, TOKEN, options()).unwrap()));
        let first = body(Bootstrap::serve(listener, 2, TOKEN, options()).unwrap());
        (first, other.join().unwrap())
    })
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn eavesdropper_reads_no_plaintext() {
    let middle = Middle::default();
    let secret = b"the key of rank 1's memory";
    ranks(&middle, |mut ranks| {
        assert_eq!(ranks.all_gather(secret, "keys of memory").unwrap(), [secret, secret]);
        ranks.finish().unwrap();
    });
    let identity = super::Member::here().identity;
    for bytes in [middle.forth.lock().unwrap(), middle.back.lock().unwrap()] {
        for part in [&secret[..], b"keys of memory", TOKEN.as_bytes(), identity.as_bytes()] {
            assert!(!holds(&bytes, part), "{:?} is in clear", part.escape_ascii().to_string());
        }
        // Label of all messages at the start. It is unencrypted only in the listener's answer of the handshake.
        assert!(bytes.windows(5).filter(|window| window == b"start").count() <= 1, "labels are in clear");
    }
}

#[test]
fn frames_of_any_length_survive_any_cut() {
    // A Noise message has 65535 bytes. The lengths are just below, at and above the end of the first message, of the
    // second one, and of many.
    let lengths = [0, 1, 65_000, 65_497, 65_498, 65_519, 65_520, 131_038, 131_039, 700_000];
    for cut in [1, 7, 0] {
        let middle = Middle { cut, ..Middle::default() };
        let lengths = if cut == 1 { &lengths[..4] } else { &lengths };
        ranks(&middle, |mut ranks| {
            for length in lengths {
                let part = |rank: usize| (0..*length).map(|at| (at * 7 + rank) as u8).collect::<Vec<_>>();
                let all = ranks.all_gather(&part(ranks.rank()), "bytes").unwrap();
                assert!(all == [part(0), part(1)], "{length}");
            }
            ranks.finish().unwrap();
        });
    }
}

#[test]
fn changed_byte_is_detected_and_reported() {
    for direction in [FORTH, BACK] {
        let middle = Middle::default();
        let (first, other) = ranks(&middle, |mut ranks| {
            ranks.barrier("before").unwrap();
            if ranks.rank() == 1 {
                middle.spoil(direction);
            }
            // Rank 0 is notified in the following step.
            ranks.barrier("row").and_then(|()| ranks.barrier("next")).unwrap_err().to_string()
        });
        let (finder, told, sender) = if direction == FORTH { (first, other, 1) } else { (other, first, 0) };
        assert!(finder.starts_with(&format!("rank {sender} (host ")) && finder.ends_with(CHANGED), "{finder}");
        assert_eq!(told, format!("rank {} stopped the job: {finder}", 1 - sender));
        assert_eq!(finder.lines().count(), 1, "{finder}");
    }
}

/// Runs a session with one question and one answer. Returns the answer that the client received.
fn visit(middle: &Middle, direction: u8) -> Result<String, BootstrapError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut entrance = SessionListener::listen("127.0.0.1:0", TOKEN, LONG).await?;
        let through = middle.between(entrance.address()?).to_string();
        let (visitor, mut host) = tokio::join!(Session::connect(&through, TOKEN, LONG), entrance.next());
        let mut visitor = visitor?;
        middle.spoil(direction);
        visitor.say("question", &"who is there?".to_owned()).await?;
        let question: String = host.hear("question").await?;
        host.say("answer", &format!("{question} it is me")).await?;
        visitor.hear("answer").await
    })
}

#[test]
fn session_detects_changed_byte() {
    assert_eq!(visit(&Middle::default(), 0), Ok("who is there? it is me".to_owned()));
    for (direction, what) in [(FORTH, "question"), (BACK, "answer")] {
        let error = visit(&Middle::default(), direction).unwrap_err().to_string();
        assert!(error.ends_with(&format!("sent an unexpected message at {what:?}: {CHANGED}")), "{error}");
    }
}

#[test]
fn rank_reconnects_after_changed_handshake() {
    let (listener, address) = listener();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| Bootstrap::serve(listener, 2, TOKEN, options()));
        for direction in [FORTH, BACK] {
            let middle = Middle::default();
            middle.spoil(direction);
            let through = middle.between(address);
            let short = BootstrapOptions { timeout: Duration::from_secs(1), ..options() };
            let error = Bootstrap::join(&[through], 1, 2, TOKEN, short).err().unwrap().to_string();
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        Bootstrap::join(&[address], 1, 2, TOKEN, options()).unwrap();
        assert_eq!(first.join().unwrap().unwrap().size(), 2);
    });
}

#[test]
fn replayed_connection_is_rejected() {
    let middle = Middle::default();
    ranks(&middle, |ranks| ranks.finish().unwrap());
    let recorded = middle.forth.lock().unwrap().clone();
    let (listener, address) = listener();
    let (waiting, text) = std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let short = BootstrapOptions { timeout: Duration::from_secs(2), ..options() };
            Bootstrap::serve(listener, 2, TOKEN, short).err().unwrap().to_string()
        });
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&recorded).unwrap();
        let mut answer = Vec::new();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut answer);
        (first.join().unwrap(), answer)
    });
    assert!(waiting.contains("waiting for rank 1") && waiting.ends_with(CHANGED), "{waiting}");
    // The text contains only the listener's message of the handshake, and a refusal that only the right connector could
    // decrypt.
    assert!(!holds(&text, b"changed") && !holds(&text, b"host"), "{}", text.escape_ascii());
}
