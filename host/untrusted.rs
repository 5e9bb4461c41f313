//! Parsers within the library, for tests/fuzz alone: what feeds them, and what they make of it.

pub use crate::bootstrap::fuzzed::{connect, connectors, frames, listen, listeners, steps};
pub use crate::fabric::printed::entries;
pub use crate::pci::printed::{lspci_devices, pci_tree};
