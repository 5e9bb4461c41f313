//! EFA cards in software, below libfabric's own EFA provider.
//!
//! A shared object that defines what the provider calls in libibverbs and libefa. Loaded with global scope before libfabric, or
//! as `LD_PRELOAD`, it is found first: the provider then sees these cards, on any machine. The variable `SOFT_EFA` describes them
//! ([`card_model::Spec`]). What is promised, and what is not, stands in docs/soft-efa.md.
//!
//! Cards of processes of one user on one machine reach one another: queues lie in shared memory (`queue`), bytes are copied
//! between registered ranges (`memory`), in an order and at times that `flight` decides.

pub mod abi;
mod address;
mod completions;
mod context;
mod deliver;
mod flight;
mod handles;
mod keeper;
mod late;
mod machine;
mod memory;
mod origin;
mod pair;
mod peer;
mod post;
mod queue;
mod request;
mod session;
mod share;
mod status;
mod symbols;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};
pub use symbols::*;

/// Whoever has panicked while it held the lock: what is behind it is whole between two statements.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
