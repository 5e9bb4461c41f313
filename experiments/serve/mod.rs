//! `ginlab serve` and `ginlab join`: peers that join a running program, write to its memory, and leave or die.
//!
//! There are neither communicators nor ranks. The server allocates memory in advance and listens for connections.
//! A peer that joins receives a slot of that memory and its key, writes, requests the checksum of what has arrived, and
//! leaves. A failure of one peer does not affect the others.

mod join;
mod memory;
mod server;
mod window;
mod words;

use crate::program::{CommandSpec, program};

pub const PROGRAMS: &[CommandSpec] = &[
    program!(
        "serve",
        "Run a server whose memory peers write to; they can join, leave or die at any time",
        server::ServeArgs,
        server::run
    ),
    CommandSpec {
        about: Some(join::ABOUT),
        ..program!(
            "join",
            "Join a running server, write into its memory and verify the data",
            join::JoinArgs,
            join::run
        )
    },
];
