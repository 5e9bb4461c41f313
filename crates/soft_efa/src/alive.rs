//! Liveness of other processes, identified by process ID and start time.

use std::sync::OnceLock;

/// Bits of a process ID; Linux has no larger ones.
const PID_BITS: u32 = 22;
/// Bits of the start time that distinguish a process from a later one with the same ID.
const MARK_BITS: u32 = 12;
/// Number of bits of an [`Owner`].
pub const OWNER_BITS: u32 = PID_BITS + MARK_BITS;

/// A process, as it identifies itself in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u64);

/// Returns state and start time of a process (fields 3 and 22 of its `stat`), or `None` if it does not exist or cannot
/// be read.
fn state_of(pid: i32) -> Option<(char, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The preceding process name can contain any character.
    let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

impl Owner {
    /// Returns this process.
    pub fn this() -> Owner {
        static THIS: OnceLock<Owner> = OnceLock::new();
        *THIS.get_or_init(|| Owner::of(std::process::id() as i32))
    }

    /// Returns the process that currently has this ID.
    pub fn of(pid: i32) -> Owner {
        let began = state_of(pid).map_or(0, |(_, began)| began);
        Owner(u64::from(pid as u32) & ((1 << PID_BITS) - 1) | (began & ((1 << MARK_BITS) - 1)) << PID_BITS)
    }

    /// Returns the owner of these bits.
    pub fn from_bits(bits: u64) -> Owner {
        Owner(bits & ((1 << OWNER_BITS) - 1))
    }

    /// Returns [`OWNER_BITS`] bits.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the process ID.
    pub fn pid(self) -> i32 {
        (self.0 & ((1 << PID_BITS) - 1)) as i32
    }

    /// Returns whether the process is alive. A zombie, or a later process with the same ID, does not count.
    pub fn is_alive(self) -> bool {
        is_alive(self.pid()) && Owner::of(self.pid()).0 == self.0
    }
}

/// Returns whether a process with this ID is alive. A zombie, which its parent has not reaped, is not.
pub fn is_alive(pid: i32) -> bool {
    // SAFETY: signal 0 is not delivered.
    if unsafe { libc::kill(pid, 0) } != 0 {
        return std::io::Error::last_os_error().raw_os_error() == Some(libc::EPERM);
    }
    // If /proc does not show the process, only the result above is available.
    state_of(pid).is_none_or(|(state, _)| !matches!(state, 'Z' | 'X' | 'x'))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test ends by panicking")]

    use super::*;

    #[test]
    fn zombie_is_not_alive() {
        assert!(Owner::this().is_alive());
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let owner = Owner::of(child.id() as i32);
        assert_eq!((owner.pid(), owner.is_alive()), (child.id() as i32, true));
        assert!(!Owner(owner.0 ^ 1 << PID_BITS).is_alive(), "another process had this number");
        child.kill().unwrap();
        while owner.is_alive() {
            std::thread::yield_now();
        }
        // SAFETY: signal 0 is not delivered.
        assert_eq!(unsafe { libc::kill(owner.pid(), 0) }, 0, "its parent has not waited for it");
        child.wait().unwrap();
        assert!(!owner.is_alive());
    }
}
