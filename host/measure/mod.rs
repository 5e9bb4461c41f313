//! What every measurement shares: statistics, sizes, the payload pattern, the floor under an acknowledged push.

pub mod clocks;
pub mod pattern;
pub mod ping_pong;
pub mod size;
pub mod stats;

use crate::cuda::DeviceError;
use crate::proxy::ProxyError;
use kernels::ring::Status;

/// Why a kernel has measured nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeasureError {
    /// The device's.
    #[error("{0}")]
    Device(#[from] DeviceError),
    /// The proxy's, which was to answer.
    #[error("{0}")]
    Proxy(#[from] ProxyError),
    /// This kernel gave up, or did not answer.
    #[error("the {} kernel ended early: {}", .0, .1.text())]
    Ended(&'static str, Status),
}
