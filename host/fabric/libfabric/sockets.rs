//! Sockets used by the peers of rails over tcp. A provider that cannot open one retries without an error, so that a run
//! would only time out.

use std::sync::atomic::{AtomicU64, Ordering};

use ginlab_base::limits;

/// Number of sockets per peer of a rail: one that connects, and one that accepts.
const PER_PEER: u64 = 2;

/// Number of peers of all rails of this process.
static PEERS: AtomicU64 = AtomicU64::new(0);

/// Number of peers of one rail.
pub(super) struct Sockets {
    takes_some: bool,
    peers: u64,
}

impl Sockets {
    /// Creates the count of a rail without peers, for a provider with this name.
    pub fn new(provider: &str) -> Sockets {
        let takes_some = provider.split(';').any(|layer| matches!(layer, "tcp" | "net" | "sockets"));
        Sockets { takes_some, peers: 0 }
    }

    /// Counts a peer.
    ///
    /// # Errors
    /// Returns the reason if the process's limit of open files does not allow it.
    pub fn add_peer(&mut self) -> Result<(), String> {
        if !self.takes_some {
            return Ok(());
        }
        let peers = PEERS.fetch_add(1, Ordering::Relaxed) + 1;
        self.peers += 1;
        match limits::lacking_files(PER_PEER * peers) {
            None => Ok(()),
            Some(text) => {
                self.remove_peer();
                Err(text)
            }
        }
    }

    /// Removes a peer from the count.
    pub fn remove_peer(&mut self) {
        if self.peers > 0 {
            self.peers -= 1;
            PEERS.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        PEERS.fetch_sub(self.peers, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tcp_providers_take_sockets() {
        let takes = |provider| Sockets::new(provider).takes_some;
        assert!(takes("tcp;ofi_rxm") && takes("net") && takes("sockets"));
        assert!(!takes("efa") && !takes("shm") && !takes("verbs;ofi_rxm"));
    }
}
