//! ginlab: a laboratory for GPU-initiated networking.
//!
//! The library holds the mechanisms: the CUDA device and its emulation ([`cuda`]), the fabrics ([`fabric`]), the ring's
//! memory ([`ring`]) and queues for study ([`queue`]), what several rails take ([`rails`]), the proxy ([`proxy`]), symmetric
//! memory for kernels that talk to each other ([`gin`]), NCCL to measure beside ([`nccl`]), the ranks ([`bootstrap`]), who shares a GPU with
//! whom ([`sharing`]) and CUDA's service for them ([`mps`]), the machine's cores ([`cores`]) and memory
//! ([`memory`]), PCI addresses ([`pci`]), who measures with whom ([`pairing`]), statistics and patterns ([`measure`]), the
//! machine's devices and what connects them ([`topology`]), what surrounds a run ([`surroundings`]), what stands in its way
//! ([`doctor`]), and the rows that every
//! experiment prints ([`report`]). It knows nothing of the command line; the experiments compose it.

pub mod bootstrap;
pub mod cores;
pub mod cuda;
pub mod doctor;
pub mod fabric;
pub mod flow;
pub mod gin;
pub mod measure;
pub mod memory;
mod memory_file;
pub mod mps;
pub mod nccl;
pub mod pairing;
pub mod pci;
pub mod proxy;
pub mod queue;
pub mod rails;
pub mod report;
pub mod ring;
pub mod sharing;
pub mod signals;
pub mod surroundings;
pub mod text;
pub mod topology;
#[doc(hidden)]
pub mod untrusted;
pub mod versions;
