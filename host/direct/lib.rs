//! Queues that a kernel drives itself ([`kernels::direct`]): of cards of verbs ([`Channels`]), or of a card in this process that serves them.
//!
//! That card is a few CPU threads. It does to the queues what a card does: it sees doorbells, reads requests, checks them, writes completions
//! and counts. There is no network behind it: a write copies bytes between registered ranges of this process, or nothing at all. So what is
//! measured over it is the kernel's side (requests, doorbells, completions over PCIe), and nothing about a wire; its rows say `null`.
//!
//! It is also the card of tests: completions in any order by a seed, late ones, lost ones, failures ([`Faults`]).

mod card;
mod channels;
mod memory;
mod serve;

pub use card::{Card, CardError, CardOptions};
pub use channels::{ChannelError, ChannelOptions, Channels, staging_bytes};
pub use memory::{DeviceSide, QueueMemory, QueueOptions, QueueTable};
pub use serve::{Faults, Found, Order, Regions};
