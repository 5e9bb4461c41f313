//! `ginlab serve` and `ginlab join`: peers that join a running program, write into its memory, and leave or die.
//!
//! There is no communicator and no rank: the server registers memory before anybody is there and listens for visits. Whoever
//! joins gets a place in that memory and the key to it, writes, asks for the checksum of what has arrived, and leaves. What
//! becomes of one peer is nothing to the others.

mod join;
mod server;
mod words;

pub use join::{Args as JoinArgs, run as join};
pub use server::{Args as ServeArgs, run as serve};
