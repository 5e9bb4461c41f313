//! Identity of a rank: its host and process.

use std::fs;

use serde::{Deserialize, Serialize};

/// Identity that every rank sends to the others at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Host name.
    pub host: String,
    /// Process ID.
    pub pid: u32,
    /// Host name, boot ID and network namespace. Ranks with equal identities reach each other over loopback and shared
    /// memory. Two containers of one machine have different identities.
    pub identity: String,
}

impl Member {
    /// Returns the identity of the machine, without the network namespace. Ranks with equal results share the machine's
    /// cores and memory.
    pub fn machine(&self) -> &str {
        let mut parts = self.identity.splitn(3, ' ');
        let host = parts.next().unwrap_or_default();
        // A system that hides its boot ID is identified by its host name.
        parts.next().filter(|boot| !boot.is_empty()).unwrap_or(host)
    }

    /// Returns the identity of the network namespace. Ranks with equal results share its interfaces and their
    /// addresses.
    pub(super) fn network(&self) -> (&str, &str) {
        (self.machine(), self.identity.splitn(3, ' ').nth(2).unwrap_or_default())
    }

    /// Returns whether both are known to run on different machines.
    pub(super) fn is_other_machine(&self, other: &Member) -> bool {
        let boot = |member: &'_ Member| member.identity.split(' ').nth(1).unwrap_or_default().to_owned();
        let boots = [boot(self), boot(other)];
        boots.iter().all(|boot| !boot.is_empty()) && boots[0] != boots[1]
    }

    /// Returns the identity of this process.
    pub fn here() -> Self {
        let host = nix::unistd::gethostname()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_else(|_| "unknown-host".to_owned());
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // The target of this link is `net:[inode]`.
        let network = fs::read_link("/proc/self/ns/net").map(|link| link.display().to_string()).unwrap_or_default();
        let identity = format!("{host} {} {network}", boot.trim());
        Member { host, pid: std::process::id(), identity }
    }

    /// Returns an identity that was received from another process, with its text made printable.
    pub(super) fn printable(self) -> Self {
        Member { host: ginlab_base::text::printable(&self.host), ..self }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn this_host_is_itself() {
        let here = Member::here();
        assert_eq!(here, Member::here());
        assert!(here.identity.contains("net:["), "{}", here.identity);
        assert!(!here.host.is_empty());
        let other = Member { identity: here.identity.replace("net:[", "net:[9"), ..here.clone() };
        assert_eq!(other.machine(), here.machine(), "two namespaces of one machine");
        let hidden = Member { identity: "name  net:[1]".to_owned(), ..here };
        assert_eq!(hidden.machine(), "name");
    }
}
