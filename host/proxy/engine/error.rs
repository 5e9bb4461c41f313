//! Why an engine ends.

use ginlab_cuda::DeviceError;
use ginlab_fabric::FabricError;
use std::time::Duration;

/// Why the engine stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The fabric's.
    #[error("{0}")]
    Fabric(#[from] FabricError),
    /// A command names something that is not there; nothing of it was posted.
    #[error("command refused: {0}")]
    Refused(String),
    /// Nothing moved for too long.
    #[error("no progress for {waited:?}: {state}")]
    Stalled {
        /// How long.
        waited: Duration,
        /// What was outstanding where.
        state: String,
    },
    /// Staging copies failed.
    #[error("staging through pinned host memory: {0}")]
    Staging(#[from] DeviceError),
    /// What cards have written into GPU memory could not be flushed, so nothing may be told of it.
    #[error("ordering the cards' writes into GPU memory: {0}")]
    Flush(DeviceError),
}
