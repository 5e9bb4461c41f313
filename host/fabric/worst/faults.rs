//! The errors of this rail: what a program did that no network has to bear.

use super::Who;
use super::claims::{Claim, Use};
use super::messages::Broken;
use crate::{FabricError, Transfer};
use nix::libc;

const WAIT: &str = "wait for a put's completion (quiet, or its own) before its source is written again";
const MEET: &str = "a slot must be free at the target before the next put into it is posted: count its uses, or give each sender its own";
const BOUND: &str = "whoever raises an immediate needs the target's word that it has polled earlier ones: what is complete at the sender may stand there \
                     unpolled";
const GET: &str = "wait for the get before its bytes are written, and for the put before they are read";

/// A transfer as messages name it.
fn named(t: &Transfer, read: bool, region: u32) -> String {
    let Transfer { bytes, local_offset, remote_offset, peer, remote, .. } = t;
    let (there, size) = (format!("offset {remote_offset} of peer {peer}'s region"), remote.bytes);
    let token = ticket(t.token);
    match read {
        false => {
            format!("put {token} of {bytes} B from offset {local_offset} of region {region} to {there} of {size} B")
        }
        true => {
            format!("get {token} of {bytes} B from {there} of {size} B to offset {local_offset} of region {region}")
        }
    }
}

/// The engine's ticket, or the operation's number of a program that posts by itself.
fn ticket(token: u64) -> String {
    if token == u64::MAX { "(a signal's own)".to_owned() } else { format!("(ticket {token})") }
}

fn error(rail: &str, operation: String, text: String, hint: &str) -> FabricError {
    FabricError { rail: rail.to_owned(), operation, code: libc::EBUSY, text, hint: hint.to_owned() }
}

#[cold]
pub(super) fn overrun(rail: &str, unpolled: u64, room: u64) -> FabricError {
    let text = format!("completion queue overrun: {unpolled} immediates that were not polled, and room for {room}");
    error(rail, "poll".to_owned(), text, BOUND)
}

#[cold]
pub(super) fn rewritten(rail: &str, t: &Transfer, region: u32, at: u64) -> FabricError {
    let text = format!("source rewritten while its put is under way (in the packet at byte {at} of it)");
    error(rail, named(t, false, region), text, WAIT)
}

#[cold]
pub(super) fn twice(rail: &str, t: &Transfer, read: bool, region: u32, other: &Claim) -> FabricError {
    let Claim { usage, who, pid, token, bytes, in_region, .. } = other;
    let token = ticket(*token);
    let (what, other, hint) = match (usage, read) {
        (Use::Put(_), false) => ("destination written by two puts at once", "put", MEET),
        (Use::Put(_), true) => ("bytes read by a get while a put to them is under way", "put", GET),
        (Use::Source | Use::Sink(_), _) => ("destination written while a get of its bytes is under way", "get", GET),
    };
    let verb = match usage {
        Use::Put(_) => "to",
        Use::Source => "from",
        Use::Sink(_) => "into",
    };
    let text =
        format!("{what}: the other is {other} {token} of {who} (process {pid}), {bytes} B {verb} offset {in_region}");
    error(rail, named(t, read, region), text, hint)
}

#[cold]
pub(super) fn itself(rail: &str, t: &Transfer, region: u32) -> FabricError {
    let text = "source and destination overlap".to_owned();
    error(rail, named(t, false, region), text, "a card may write its first bytes before it has read the last ones")
}

#[cold]
pub(super) fn message(rail: &str, broken: &Broken) -> (u64, FabricError) {
    match broken {
        Broken::Rewritten { token, bytes, peer } => {
            let what = format!("send {} of {bytes} B to peer {peer}", ticket(*token));
            let text = "source rewritten while its message is under way".to_owned();
            (*token, error(rail, what, text, "wait for the send's completion before its bytes are written again"))
        }
        Broken::TooLong { token, bytes, room } => {
            let what = format!("receive {} into {room} B", ticket(*token));
            let text = format!("the message has {bytes} B");
            (*token, FabricError { code: libc::EMSGSIZE, ..error(rail, what, text, "") })
        }
        Broken::Abandoned { token } => {
            let text = "its sender's rail was closed in the middle of the message".to_owned();
            let what = format!("receive {}", ticket(*token));
            (*token, FabricError { code: libc::ECONNRESET, ..error(rail, what, text, "") })
        }
    }
}

#[cold]
pub(super) fn gone(rail: &str, token: u64, peer: usize, bytes: u64) -> FabricError {
    let what = format!("send {} of {bytes} B to peer {peer}", ticket(token));
    FabricError { code: libc::ECONNRESET, ..error(rail, what, "the peer's process has ended".to_owned(), "") }
}

#[cold]
pub(super) fn cancelled(rail: &str, token: u64) -> FabricError {
    let (what, text) = (format!("receive {}", ticket(token)), "taken back".to_owned());
    FabricError { code: libc::ECANCELED, ..error(rail, what, text, "") }
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {}, proxy {}, rail {}", self.rank, self.proxy, self.rail)
    }
}
