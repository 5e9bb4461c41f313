//! What guards a port before the other side has proved anything: shared by ranks' doors and servers for visits.
//!
//! A connection has [`HANDSHAKE_LIMIT`] in all, however many bytes it dribbles; no more than [`MAX_STRANGERS`] are kept,
//! and when a further one comes the oldest goes, so that idle ones cannot keep the others out; and stderr gets a few lines
//! however many are turned away.

use std::net::SocketAddr;
use std::time::Duration;

use crate::text::printable;

/// A connection must have proved that it knows the token, and said who it is, within this time.
pub(super) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);

/// Connections that have not, at most (a rank's door: beyond the job's own).
pub(super) const MAX_STRANGERS: usize = 64;

/// What the oldest is told off for when it goes for a newer one.
pub(super) const CROWDED_OUT: &str = "it said nothing for longest, and more came than are kept waiting";

/// Refusals told one by one; after these, only at 16, 32, 64, ... of them.
const MAX_NOTICES: usize = 8;

/// Tells of connections that were turned away.
#[derive(Debug, Default)]
pub(super) struct Notices {
    refused: usize,
    last: String,
}

impl Notices {
    /// Notes one, and tells of it on stderr if it is due.
    pub fn tell(&mut self, from: SocketAddr, why: &str) {
        self.note(format!("{}: {}", shown(from), printable(why)));
        if self.refused <= MAX_NOTICES {
            eprintln!("ginlab: refused a connection from {}", self.last);
        } else if self.refused.is_power_of_two() {
            eprintln!("ginlab: refused {} connections so far, the last from {}", self.refused, self.last);
        }
    }

    /// Notes one without a word on stderr.
    pub fn note(&mut self, what: String) {
        self.refused += 1;
        self.last = what;
    }

    /// For the error of a wait that ended without everybody.
    pub fn clause(&self) -> String {
        match self.refused {
            0 => String::new(),
            1 => format!("; refused one connection: {}", self.last),
            n => format!("; refused {n} connections, the last: {}", self.last),
        }
    }
}

/// Without the IPv6 spelling of an IPv4 address.
pub(super) fn shown(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
