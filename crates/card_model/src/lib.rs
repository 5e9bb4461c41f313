//! What modelled cards share, whoever moves the bytes: when a write is on its way, there, and acknowledged ([`Nic`]), and how
//! cards in software are described ([`Spec`]). It depends on nothing, so that a library that is loaded into any program can hold
//! it. The figures themselves stand in one place, ginlab's data file of profiles.

mod nic;
mod spec;

pub use nic::{Course, Figures, Nic, Picoseconds};
pub use spec::{Fault, MOST_THREADS, Spec};
