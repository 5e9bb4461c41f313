//! Errors of an engine.

use ginlab_cuda::DeviceError;
use ginlab_fabric::FabricError;
use std::time::Duration;

/// Reason why the engine stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// A fabric operation failed.
    #[error("{0}")]
    Fabric(#[from] FabricError),
    /// A command names a region, range, peer or signal that does not exist. No part of it was posted.
    #[error("command refused: {0}")]
    Refused(String),
    /// No progress within the timeout.
    #[error("no progress for {waited:?}: {state}")]
    Stalled {
        /// Time without progress.
        waited: Duration,
        /// Outstanding work, per rail.
        state: String,
    },
    /// A staging copy failed.
    #[error("staging through pinned host memory: {0}")]
    Staging(#[from] DeviceError),
    /// Data that NICs wrote to GPU memory could not be flushed, so its completions must not be reported.
    #[error("ordering the NICs' writes into GPU memory: {0}")]
    Flush(DeviceError),
}
