//! EFA cards in software, below libfabric's own EFA provider.
//!
//! A shared object that defines what the provider calls in libibverbs and libefa. Loaded with global scope before libfabric, or
//! as `LD_PRELOAD`, it is found first: the provider then sees these cards, on any machine. The variable `SOFT_EFA` describes them
//! ([`card_model::Spec`]). What is promised, and what is not, stands in docs/soft-efa.md.
//!
//! Cards of processes of one user on one machine reach one another: queues lie in shared memory (`queue`), bytes are copied
//! between registered ranges (`memory`), in an order and at times that `flight` decides.

pub mod abi;
mod completions;
mod context;
mod flight;
mod keeper;
mod machine;
mod memory;
mod pair;
mod peer;
mod queue;
mod share;
mod symbols;

pub use symbols::*;
