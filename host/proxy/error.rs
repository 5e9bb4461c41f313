//! Why a proxy thread could not do what was asked.

use crate::engine::EngineError;
use std::time::Duration;

/// Why a proxy thread could not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// The engine stopped: fabric error, refused command, stall.
    #[error("{0}")]
    Engine(#[from] EngineError),
    /// The thread has gone without saying why.
    #[error("the proxy thread has gone without a reason (a bug, or --fault proxy-vanish)")]
    Gone,
    /// It was told to stop.
    #[error("the proxy thread has stopped, as it was told to")]
    Stopped,
    /// No answer in time.
    #[error("the proxy thread did not answer within {0:?}")]
    Silent(Duration),
    /// It could not be started.
    #[error("starting the proxy thread: {0}")]
    Spawn(String),
    /// There are no peers for some of them.
    #[error("ranks differ in their number of proxy threads")]
    Threads,
}

impl ProxyError {
    /// Whether something was waited for in vain.
    pub fn is_timeout(&self) -> bool {
        matches!(self, ProxyError::Silent(_) | ProxyError::Engine(EngineError::Stalled { .. }))
    }
}
