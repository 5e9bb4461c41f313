//! Errors that this rail reports for uses that a network is not required to support.

use super::Who;
use super::claims::{Claim, Use};
use super::flight::{Flight, Packet};
use super::landed::{LandedTransfer, Missing};
use super::messages::Broken;
use crate::{FabricError, offsets};
use nix::libc;
use std::fmt;

const WAIT: &str = "wait for a put's completion (quiet, or its own) before its source is rewritten";
const BOUND: &str = "a sender must know that the target has polled earlier immediates before it sends another: \
                     immediates that are complete at the sender may still be unpolled at the target";
const GET: &str = "wait for the get before its bytes are written, and for the put before they are read";

/// Text of a put or get for messages, with its number among those of `rank` with `other`.
struct Call {
    name: &'static str,
    number: u32,
    rank: u32,
    other: u32,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { name, number, rank, other } = self;
        let way = if *name == "get" { "from" } else { "to" };
        write!(f, "{name} {number} of rank {rank} {way} rank {other}")
    }
}

fn name_of(read: bool, signals: bool) -> &'static str {
    match (read, signals) {
        (true, _) => "get",
        (false, true) => "put_signal",
        (false, false) => "put",
    }
}

impl From<&Claim> for Call {
    fn from(claim: &Claim) -> Call {
        let read = !matches!(claim.usage, Use::Put(_));
        Call { name: name_of(read, claim.signals), number: claim.number, rank: claim.who.rank, other: claim.other }
    }
}

/// Returns the text for the put or get of a flight of `rank`.
fn call(flight: &Flight, rank: u32) -> Call {
    let signals = flight.transfer.immediate.is_some();
    Call { name: name_of(flight.read, signals), number: flight.number, rank, other: flight.other }
}

/// Returns the text of an operation number, for applications that use messages.
fn ticket(token: u64) -> String {
    format!("(ticket {token})")
}

fn error(rail: &str, operation: String, text: String, hint: &str) -> FabricError {
    FabricError { rail: rail.to_owned(), operation, code: FabricError::MISUSE, text, hint: hint.to_owned() }
}

#[cold]
pub(super) fn overrun(rail: &str, unpolled: u64, room: u64) -> FabricError {
    let text = format!("completion queue overrun: {unpolled} unpolled immediates, but space for {room}");
    error(rail, "poll".to_owned(), text, BOUND)
}

/// Returns the cause of a changed source, and the missing wait. `noun` names the kind of transfer in flight.
fn landing(landed: &LandedTransfer, noun: &str, rank: u32) -> (String, String) {
    let LandedTransfer { claim, missing } = landed;
    let (call, sender) = (Call::from(claim), claim.who.rank);
    let hint = match (missing, call.name) {
        (Missing::Arrival, "get") => {
            format!("rank {rank} sent the bytes before its get had completed: wait for the get")
        }
        (Missing::Arrival, _) => format!(
            "rank {rank} forwarded the bytes before they had arrived: wait for that put's own signal (one for each \
             slot)"
        ),
        (Missing::Turn, _) => {
            format!("rank {sender} did not wait for a signal of rank {rank} that its forwarding {noun} has completed")
        }
        (Missing::Completion, _) => format!(
            "rank {rank} signalled rank {sender} before its forwarding {noun} had completed: wait for it (quiet), then signal"
        ),
        (Missing::Own, name) => {
            format!(
                "rank {rank} did not wait for its forwarding {noun} (quiet) before its {name} into the {noun}'s source"
            )
        }
    };
    let text =
        format!("source rewritten while its {noun} is in flight: {call} ({} B) was written into it", claim.bytes);
    (text, hint)
}

#[cold]
pub(super) fn rewritten(
    rail: &str,
    rank: u32,
    flight: &Flight,
    packet: Packet,
    landed: Option<&LandedTransfer>,
) -> FabricError {
    let (text, hint) = landed.map_or_else(
        || {
            let text =
                format!("source rewritten while its put is in flight (in the packet at byte {} of it)", packet.at);
            (text, WAIT.to_owned())
        },
        |landed| landing(landed, "put", rank),
    );
    let place = offsets::local(flight.transfer.local_offset, flight.region);
    let operation = format!("{}: {} B from {place}", call(flight, rank), flight.transfer.bytes);
    error(rail, operation, text, &hint)
}

#[cold]
pub(super) fn twice(rail: &str, rank: u32, flight: &Flight, other: &Claim) -> FabricError {
    let Claim { usage, who, bytes, in_region, .. } = other;
    let (mine, theirs) = (call(flight, rank), Call::from(other));
    let what = match (usage, flight.read) {
        (Use::Put(_), false) => "destination written by two puts at the same time",
        (Use::Put(_), true) => "bytes read by a get while a put to them is in flight",
        (Use::Source | Use::Sink(_), _) => "destination written while a get of its bytes is in flight",
    };
    let hint = match usage {
        Use::Put(_) if !flight.read && who.rank == rank => format!(
            "the slot is free once rank {} has signalled that it used the other put; use a signal for each slot",
            other.other
        ),
        Use::Put(_) if !flight.read => "give each sender its own slot".to_owned(),
        _ => GET.to_owned(),
    };
    let (verb, owner) = match usage {
        Use::Put(_) => ("to", theirs.other),
        Use::Source => ("from", theirs.other),
        Use::Sink(_) => ("into", theirs.rank),
    };
    let place = offsets::remote(*in_region, owner);
    let text = format!("{what}: the other is {theirs}, {bytes} B {verb} {place}");
    let (t, way) = (&flight.transfer, if flight.read { "from" } else { "to" });
    let place = format!("{} B {way} {}", t.bytes, offsets::remote(t.remote_offset, mine.other));
    error(rail, format!("{mine}: {place}"), text, &hint)
}

#[cold]
pub(super) fn itself(rail: &str, rank: u32, flight: &Flight) -> FabricError {
    let (t, region) = (&flight.transfer, flight.region);
    let [from, to] = [t.local_offset, t.remote_offset].map(|offset| offsets::local(offset, region));
    let place = format!("{} B from {from} to {to}", t.bytes);
    let text = "source and destination overlap".to_owned();
    let hint = "a NIC may write the first bytes before it has read the last ones";
    error(rail, format!("{}: {place}", call(flight, rank)), text, hint)
}

#[cold]
pub(super) fn message(rail: &str, rank: u32, broken: &Broken, landed: Option<&LandedTransfer>) -> (u64, FabricError) {
    match broken {
        Broken::Rewritten { token, total, peer, .. } => {
            let what = format!("send {} of {total} B to peer {peer}", ticket(*token));
            let (text, hint) = landed.map_or_else(
                || {
                    let text = "source rewritten while its message is in flight".to_owned();
                    (text, "wait for the send's completion before its bytes are rewritten".to_owned())
                },
                |landed| landing(landed, "message", rank),
            );
            (*token, error(rail, what, text, &hint))
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
    FabricError { code: libc::ECONNRESET, ..error(rail, what, "the peer's process exited".to_owned(), "") }
}

#[cold]
pub(super) fn cancelled(rail: &str, token: u64) -> FabricError {
    let (what, text) = (format!("receive {}", ticket(token)), "cancelled".to_owned());
    FabricError { code: libc::ECANCELED, ..error(rail, what, text, "") }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}, proxy {}, rail {}", self.rank, self.proxy, self.rail)
    }
}
