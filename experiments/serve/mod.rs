//! `ginlab serve` and `ginlab join`: peers that join a running program, write into its memory, and leave or die.
//!
//! There is no communicator and no rank: the server registers memory before anybody is there and listens for visits. Whoever
//! joins gets a place in that memory and the key to it, writes, asks for the checksum of what has arrived, and leaves. What
//! becomes of one peer is nothing to the others.

mod join;
mod memory;
mod server;
mod window;
mod words;

use crate::program::{Program, program};

pub const PROGRAMS: &[Program] = &[
    program!(
        "serve",
        "A server whose memory peers write into that join while it runs, leave or die",
        server::Args,
        server::run
    ),
    Program {
        about: Some(join::ABOUT),
        ..program!(
            "join",
            "Join a running server: write into its memory, have it verified, leave",
            join::Args,
            join::run
        )
    },
];
