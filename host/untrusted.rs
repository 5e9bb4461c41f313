//! Parsers of the library, and inputs for them, only for tests/fuzz.

pub use ginlab_bootstrap::fuzzed::{answer, answers, connect, connectors, frames, greeting, greetings};
pub use ginlab_bootstrap::fuzzed::{listen, listeners, sealed, sealed_steps, steps};
pub use ginlab_fabric::printed::entries;
pub use ginlab_topology::pci::printed::{lspci_devices, pci_tree};
