//! The exhibits that are rules of proxies and of the targets of writes: public bugs, each in a broken and in a fixed
//! form.
//!
//! Each file is the code of both PEs; `fixed` selects the form. **The broken forms are wrong on purpose: do not copy
//! them.**

mod coalesced;
mod dropped;
mod error_completion;
mod reset_word;
mod weak_signal;

pub use coalesced::coalesced;
pub use dropped::dropped;
pub use error_completion::error_completion;
pub use reset_word::reset_word;
pub use weak_signal::weak_signal;

use std::collections::BTreeSet;

/// Restores the order of numbered operations that arrive in any order.
#[derive(Debug, Default)]
struct InOrder {
    next: u32,
    early: BTreeSet<u32>,
}

impl InOrder {
    /// Records the arrival of an operation.
    fn arrive(&mut self, number: u32) {
        self.early.insert(number);
    }

    /// Returns the number of the next operation, once it has arrived.
    fn next(&mut self) -> Option<u32> {
        let number = self.next;
        self.early.remove(&number).then(|| {
            self.next += 1;
            number
        })
    }
}
