//! Simulation of NICs, independent of how bytes are moved: the times at which a write is sent, delivered and
//! acknowledged ([`Nic`]), and the description of software NICs ([`MachineSpec`]). Has no dependencies, so that a
//! library loaded into any program can use it. The figures of real NICs are only in ginlab's data file of profiles.

mod nic;
mod spec;

pub use nic::{Nic, NicTimings, Picoseconds, WriteTimes};
pub use spec::{MOST_THREADS, MachineSpec, NicFault};
