//! Software EFA devices, below libfabric's own EFA provider.
//!
//! This crate is a shared object that defines the libibverbs and libefa functions that the provider calls. If it is
//! loaded with global scope before libfabric, or as `LD_PRELOAD`, the dynamic linker finds its symbols first. The
//! provider then sees these devices, on any machine. The variable `SOFT_EFA` describes them
//! ([`card_model::MachineSpec`]). docs/soft-efa.md lists the guarantees and limits.
//!
//! Devices of processes of one user on one machine can reach one another. Queues are in shared memory (`queue`), and
//! bytes are copied between registered ranges (`memory`). `flight` decides the order and times of the copies.
//!
//! A program can request the queues themselves (`efadv_query_qp_wqs`, `efadv_query_cq`), write requests into them and
//! read completions from them, on a CPU or by a GPU. A thread of the process then acts as the device (`engine`) and
//! processes the doorbells (`intake`).

mod address;
mod alive;
mod cause;
mod channel;
mod completions;
mod context;
mod counter;
mod deliver;
mod engine;
mod entries;
mod flight;
mod handles;
mod inbox;
mod intake;
mod keeper;
mod lap;
mod late;
mod loader;
mod machine;
mod memory;
mod origin;
mod pair;
mod paths;
mod peer;
mod plain;
mod post;
mod queue;
mod registration;
mod request;
mod rings;
mod session;
mod share;
mod status;
mod symbols;
#[cfg(test)]
mod tests;
mod wire;

pub use cause::soft_efa_cause;
use std::sync::{Mutex, MutexGuard, PoisonError};
pub use symbols::*;
pub use verbs_sys as abi;

/// Returns the next definition of a function, after that of this library: `next!(c"name" => Type)`, an `Option`.
///
/// The macro is unsafe: the function must have the specified type.
macro_rules! next {
    ($name:expr => $ty:ty) => {{
        static NEXT: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
            std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
        let mut found = NEXT.load(std::sync::atomic::Ordering::Relaxed);
        if found.is_null() {
            found = libc::dlsym(libc::RTLD_NEXT, $name.as_ptr());
            // The order is relaxed, because every thread that searches finds the same function.
            NEXT.store(found, std::sync::atomic::Ordering::Relaxed);
        }
        std::mem::transmute::<*mut std::ffi::c_void, Option<$ty>>(found)
    }};
}
pub(crate) use next;

/// Locks `mutex`, and ignores poisoning: no statement that holds such a lock leaves the data inconsistent if it panics.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
