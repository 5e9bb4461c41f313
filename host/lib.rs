//! ginlab: a laboratory for GPU-initiated networking.
//!
//! The library holds the mechanisms: the CUDA device and its emulation ([`cuda`]), the fabrics ([`fabric`]), the ring's
//! memory ([`ring`]) and queues for study ([`queue`]), a card's queues in the hands of kernels ([`direct`]), what several rails take ([`rails`]), the proxy ([`proxy`]), symmetric
//! memory for kernels that talk to each other ([`gin`]), NCCL to measure beside ([`nccl`]), the ranks ([`bootstrap`]), who shares a GPU with
//! whom ([`sharing`]) and CUDA's service for them ([`mps`]), the machine's cores ([`cores`]) and memory
//! ([`memory`]), PCI addresses ([`pci`]), who measures with whom ([`pairing`]), statistics and patterns ([`measure`]), the
//! machine's devices and what connects them ([`topology`]), what surrounds a run ([`environment`]), what stands in its way
//! ([`doctor`]), and the rows that every
//! experiment prints ([`report`]). It knows nothing of the command line; the experiments compose it.

pub use ginlab_base::{given_up, left_behind, memory, pairing, signals, text};
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

/// What every measurement shares: statistics, sizes, the payload pattern, the floor under an acknowledged push.
pub mod measure {
    pub use ginlab_base::{pattern, size, stats};
    pub use ginlab_proxy::clocks;
    pub use ginlab_proxy::ping_pong::{self, MeasureError};
}
