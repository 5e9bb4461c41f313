//! Errors of a proxy thread.

use crate::engine::EngineError;
use std::time::Duration;

/// Error of a request to a proxy thread.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// The engine stopped because of a fabric error, a refused command or a stall.
    #[error("{0}")]
    Engine(#[from] EngineError),
    /// The thread exited without reporting a reason.
    #[error("proxy thread exited unexpectedly (a bug, or the injected fault proxy-vanish)")]
    Gone,
    /// The thread was requested to stop.
    #[error("proxy thread was stopped on request")]
    Stopped,
    /// The thread did not answer in time.
    #[error("proxy thread did not answer within {0:?}")]
    Silent(Duration),
    /// The thread could not be started.
    #[error("cannot start the proxy thread: {0}")]
    Spawn(String),
    /// The ranks have different numbers of proxy threads, so that some threads have no peers.
    #[error("ranks differ in the number of proxy threads")]
    Threads,
}

impl ProxyError {
    /// Returns whether the error is a timeout or a stall.
    pub fn is_timeout(&self) -> bool {
        matches!(self, ProxyError::Silent(_) | ProxyError::Engine(EngineError::Stalled { .. }))
    }
}
