//! Where requests come from: what a request needs to know of the queue pair that posts it.

use crate::context::Context;
use crate::counter::{Counter, OPERATIONS};
use crate::queue::Page;
use std::sync::{Arc, OnceLock};

/// A queue pair, as far as its requests know it.
pub struct Origin {
    /// Its card.
    pub context: &'static Context,
    /// What peers see of it.
    pub page: Page,
    /// Its number.
    pub number: u32,
    /// Where each operation is counted, if it is.
    pub counters: [OnceLock<Arc<Counter>>; OPERATIONS],
}
