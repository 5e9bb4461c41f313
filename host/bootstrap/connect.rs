//! The way of every other rank to rank 0.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};

use super::error::BootstrapError;
use super::frame::{self, FrameKind};
use super::hello::{self, Answer, Hello, Opening, Refusal};
use super::link::Link;
use super::wait::Clock;

/// One connection attempt. A lost SYN is better repeated than waited for.
const ATTEMPT: Duration = Duration::from_secs(1);

/// How long one of several candidate addresses may keep the others waiting: behind a wrong one there may be anything.
const CANDIDATE: Duration = Duration::from_secs(3);

const FIRST_BACKOFF: Duration = Duration::from_millis(10);
const LAST_BACKOFF: Duration = Duration::from_millis(500);

enum Failure {
    /// May be better next time.
    Retry(String),
    /// Refused by a rank 0: not this address.
    Refused(Refusal),
    /// The wait is over.
    End(BootstrapError),
}

/// Connects to rank 0 at one of the addresses that `candidates` gives, until the clock runs out. Names are looked up again
/// for every round: in a cluster that is starting, the name of rank 0 may appear late.
pub(super) fn connect(
    candidates: impl Fn() -> Result<Vec<SocketAddr>, String>,
    master: &str,
    token: &str,
    hello: &Hello,
    clock: &Clock,
) -> Result<Link, BootstrapError> {
    let greeting = frame::encode(FrameKind::Hello, 0, "start", &hello::json(hello));
    let mut last = String::from("none");
    let mut backoff = FIRST_BACKOFF;
    loop {
        let addresses = candidates().unwrap_or_else(|error| {
            last = error;
            Vec::new()
        });
        let mut refusals = 0;
        for &address in &addresses {
            if clock.expired() {
                break;
            }
            let patience = if addresses.len() == 1 { clock.remaining() } else { CANDIDATE };
            match attempt(address, token, &greeting, &clock.within(patience)) {
                Ok(link) => return Ok(link),
                Err(Failure::End(error)) => return Err(error),
                Err(Failure::Retry(why)) => last = format!("{address}: {why}"),
                Err(Failure::Refused(Refusal { why, last_word })) => {
                    refusals += 1;
                    if last_word || refusals == addresses.len() {
                        return Err(BootstrapError::Refused { master: address.to_string(), rank: hello.rank, why });
                    }
                    last = format!("{address}: refused: {why}");
                }
            }
        }
        if clock.interrupted() {
            return Err(BootstrapError::Interrupted { what: "start".into() });
        }
        if clock.expired() {
            let (after, rank, master) = (clock.timeout, hello.rank, master.to_owned());
            return Err(BootstrapError::Unreachable { after, rank, master, last });
        }
        clock.pause(backoff);
        backoff = (backoff * 2).min(LAST_BACKOFF);
    }
}

fn attempt(address: SocketAddr, token: &str, greeting: &[u8], clock: &Clock) -> Result<Link, Failure> {
    let retry = |error: std::io::Error| Failure::Retry(error.to_string());
    // The limit must not be zero, and the time may run out just now.
    let limit = clock.remaining().clamp(Duration::from_millis(1), ATTEMPT);
    let stream = TcpStream::connect_timeout(&address, limit).map_err(retry)?;
    if stream.local_addr().ok() == Some(address) {
        // A port nobody listens on can connect to itself when it lies in the ephemeral range.
        return Err(Failure::Retry("Connection refused".into()));
    }
    // Who rank 0 is, its Welcome tells.
    let nobody = super::Member { host: address.to_string(), pid: 0, identity: String::new() };
    let mut link = Link::new(stream, nobody, Vec::new()).map_err(retry)?;
    // Whoever this is has proved nothing yet.
    link.longest = hello::MAX_HELLO_BYTES;
    let mut opening = Opening::new().map_err(retry)?;
    let (mut words, mut sent) = (opening.prefix(), 0);
    loop {
        if sent < words.len() {
            sent += link.send_some(&words[sent..]).map_err(retry)?;
        }
        link.fill().map_err(|why| Failure::Retry(format!("not a ginlab rank 0: {why}")))?;
        while let Some(frame) = link.frames.pop_front() {
            match opening.step(&frame, token, greeting, &mut words) {
                Answer::Wait => {}
                Answer::Welcome(payload) => {
                    let member: super::Member = serde_json::from_slice(&payload)
                        .map_err(|error| Failure::Retry(format!("unreadable Welcome: {error}")))?;
                    link.member = member.printable();
                    link.longest = frame::MAX_BYTES;
                    return Ok(link);
                }
                Answer::Refused(refusal) => return Err(Failure::Refused(refusal)),
                Answer::Foreign(why) => return Err(Failure::Retry(why)),
            }
        }
        if link.closed {
            return Err(Failure::Retry("it closed the connection without an answer".into()));
        }
        if clock.interrupted() {
            return Err(Failure::End(BootstrapError::Interrupted { what: "start".into() }));
        }
        if clock.expired() {
            return Err(Failure::Retry("it took the connection, but did not answer".into()));
        }
        let mut flags = PollFlags::POLLIN;
        flags.set(PollFlags::POLLOUT, sent < words.len());
        clock.poll(&mut [PollFd::new(link.as_fd(), flags)]).map_err(Failure::End)?;
    }
}
