//! Errors of operations.

use ginlab_fabric::FabricError;
use std::time::Duration;

/// Reason why an operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// A fabric operation failed.
    #[error("{0}")]
    Fabric(Box<FabricError>),
    /// The operation names a range, region, rail or peer that does not exist, or it is not possible now.
    #[error("{0}")]
    Refused(String),
    /// The flow stalled: no operation completed within its timeout.
    #[error("no operation completed within {waited:?}: {state}")]
    Stalled {
        /// Timeout of the flow.
        waited: Duration,
        /// Operations in flight and state of the rails.
        state: String,
    },
}

impl From<FabricError> for FlowError {
    fn from(error: FabricError) -> FlowError {
        // Boxed, because results are moved several times for each write.
        FlowError::Fabric(Box::new(error))
    }
}
