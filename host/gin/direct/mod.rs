//! Queues that a kernel drives without a proxy ([`kernels::direct`]): those of real NICs through verbs ([`Channels`]),
//! or those of a software NIC in this process ([`SoftNic`]).
//!
//! The software NIC consists of CPU threads that process the queues as a NIC would: they poll doorbells, read and
//! validate requests, write completions and update counters. No network is simulated: a write copies bytes between
//! registered ranges of this process, or copies nothing. Measurements over it therefore cover the kernel's side
//! (requests, doorbells, completions over PCIe) but no network. Their rows show `null`.
//!
//! The software NIC also serves tests: it can complete requests in a random order given by a seed, delay or lose
//! completions, and inject failures ([`QueueFaults`]).

mod card;
mod channels;
mod memory;
mod serve;

pub use card::{CardError, CardOptions, SoftNic};
pub use channels::{ChannelError, ChannelOptions, Channels, staging_bytes};
pub use memory::{DeviceSide, QueueMemory, QueueOptions, QueueTable};
pub use serve::{CompletionOrder, QueueFaults, QueueObservations, Regions};
