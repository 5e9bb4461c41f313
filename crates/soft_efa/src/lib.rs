//! EFA cards in software, below libfabric's own EFA provider.
//!
//! A shared object that defines what the provider calls in libibverbs and libefa. Loaded with global scope before libfabric, or
//! as `LD_PRELOAD`, it is found first: the provider then sees these cards, on any machine. The variable `SOFT_EFA` describes them
//! ([`card_model::Spec`]). What is promised, and what is not, stands in docs/soft-efa.md.
//!
//! Cards of processes of one user on one machine reach one another: queues lie in shared memory (`queue`), bytes are copied
//! between registered ranges (`memory`), in an order and at times that `flight` decides.
//!
//! Who asks for the queues themselves (`efadv_query_qp_wqs`, `efadv_query_cq`) writes requests into them and reads completions there, on a
//! CPU or by a GPU: then a thread of the process is the card (`engine`), which takes what the doorbell says (`intake`).

mod address;
mod completions;
mod context;
mod counter;
mod deliver;
mod engine;
mod entries;
mod flight;
mod handles;
mod intake;
mod keeper;
mod late;
mod machine;
mod memory;
mod origin;
mod pair;
mod peer;
mod plain;
mod post;
mod queue;
mod request;
mod rings;
mod session;
mod share;
mod status;
mod symbols;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::{Mutex, MutexGuard, PoisonError};
pub use symbols::*;
pub use verbs_sys as abi;

/// Whoever has panicked while it held the lock: what is behind it is whole between two statements.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
