//! ginlab: a laboratory for GPU-initiated networking.
//!
//! The library contains the mechanisms; the experiments compose them and add the command line.
//!
//! - Devices and transports: the CUDA device and its emulation ([`cuda`]), the fabrics ([`fabric`]), striping over
//!   several rails ([`rails`]), the command ring ([`ring`]) and the proxy that drains it ([`proxy`]).
//! - GPU-initiated networking: NIC queues driven by kernels ([`direct`]), symmetric memory for communicating kernels
//!   ([`gin`]), fabric operations as futures ([`flow`]), queue designs for study ([`queue`]), NCCL as a reference
//!   ([`nccl`]).
//! - Ranks: rendezvous and exchange ([`bootstrap`]), pairs of measuring ranks ([`pairing`]), GPU sharing between
//!   processes ([`sharing`]) through CUDA's Multi-Process Service ([`mps`]).
//! - Machine: cores ([`cores`]), memory ([`memory`]), PCI addresses ([`pci`]), devices and their connections
//!   ([`topology`]), the environment of a run ([`environment`]), checks of the setup ([`doctor`]).
//! - Results: statistics and payload patterns ([`measure`]), result rows ([`report`]).

pub use ginlab_base::{crash_handler, limits, memory, pairing, progress, random, scratch, shm_cleanup, signals, text};
pub use ginlab_bootstrap as bootstrap;
pub use ginlab_cuda as cuda;
pub use ginlab_direct as direct;
pub use ginlab_doctor as doctor;
pub use ginlab_fabric as fabric;
pub use ginlab_flow as flow;
pub use ginlab_gin as gin;
pub use ginlab_nccl as nccl;
pub use ginlab_proxy::{self as proxy, ring};
pub use ginlab_queue as queue;
pub use ginlab_rails as rails;
pub use ginlab_report as report;
pub use ginlab_sharing::{self as sharing, mps};
pub use ginlab_topology::{self as topology, cores, environment, pci};

#[doc(hidden)]
pub mod untrusted;
pub mod versions;

/// Parts shared by all measurements: statistics, sizes, the payload pattern, and the ping-pong that gives the lower
/// bound of an acknowledged push.
pub mod measure {
    pub use ginlab_base::{pattern, size, stats};
    pub use ginlab_proxy::clocks;
    pub use ginlab_proxy::ping_pong::{self, MeasureError};
}
