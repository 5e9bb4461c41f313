//! Where requests come from: what a request needs to know of the queue pair that posts it.

use crate::context::Context;
use crate::queue::Page;

/// A queue pair, as far as its requests know it.
pub struct Origin {
    /// Its card.
    pub context: &'static Context,
    /// What peers see of it.
    pub page: Page,
    /// Its number.
    pub number: u32,
}
