//! The peers of a rail on one machine: each peer's process, its memory, which is mapped here, and the queue of
//! immediates to it.
//!
//! All rails that reach their peers through shared memory use this module: [`SameHostRail`](super::SameHostRail),
//! [`WorstRail`](crate::worst::WorstRail).

use super::inbox::Outbox;
use crate::{FabricError, MemoryRange, RemoteRegion, Transfer, mistake};
use ginlab_base::memory_file::{self, FileName, MemoryFile};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Size of an address: process, descriptor and number of the inbox, and the PID namespace.
const ADDRESS_BYTES: usize = 20;

/// A registered region: its memory, and the file that contains it.
#[derive(Clone, Debug)]
pub struct SameHostRegion {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) file: Option<Arc<MemoryFile>>,
}

/// Peers by index. `None` for a removed peer.
#[derive(Debug, Default)]
pub(crate) struct Peers(Vec<Option<Peer>>);

#[derive(Debug)]
pub(crate) struct Peer {
    /// A pidfd that becomes readable when the process exits. `None` if the system does not permit pidfds, in which case
    /// only the bootstrap detects the exit.
    process: Option<OwnedFd>,
    pub inbox: FileName,
    pub has_ended: bool,
    outbox: Option<Outbox>,
    /// Mapped files of the peer, by the key of its regions.
    memory: Vec<(u64, Arc<MemoryFile>)>,
}

/// Packs the number and the descriptor of a file into one word.
pub(crate) fn key_of(name: FileName) -> u64 {
    u64::from(name.number) << 32 | u64::from(name.descriptor as u32)
}

/// Returns the name of the file with this key in the process `pid`.
pub(crate) fn name_of(pid: u32, key: u64) -> FileName {
    FileName { pid, descriptor: key as u32 as i32, number: (key >> 32) as u32 }
}

/// Returns an identifier of the PID namespace. Processes can refer to each other by PID only within one namespace.
fn process_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// Opens a descriptor that becomes readable when a process exits. `None` if the system does not permit this.
fn watch(pid: u32) -> io::Result<Option<OwnedFd>> {
    // SAFETY: a system call with two integers, which returns a new descriptor or an error.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    if process >= 0 {
        // SAFETY: the descriptor is new, and no other code owns it. Descriptors fit in an `i32`.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(process as i32) }));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM) => Ok(None),
        _ => Err(error),
    }
}

/// Returns the address of a rail of this process with this inbox.
pub(crate) fn address(inbox: FileName) -> Vec<u8> {
    let FileName { pid, descriptor, number } = inbox;
    let words = [pid, descriptor as u32, number].map(u32::to_le_bytes);
    [words.as_flattened(), &process_namespace().to_le_bytes()].concat()
}

pub(crate) fn operation(t: &Transfer) -> String {
    format!("transfer of {} B with peer {}", t.bytes, t.peer)
}

#[cold]
pub(crate) fn failed(rail: &str, operation: impl Into<String>, error: &io::Error) -> FabricError {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "all ranks must run as the same user and none set-user-id, and a container must let them access each \
             other's /proc (ptrace access)"
                .to_owned()
        }
        io::ErrorKind::NotFound => "has the peer's process exited?".to_owned(),
        _ => String::new(),
    };
    let code = error.raw_os_error().unwrap_or(libc::EIO);
    FabricError { rail: rail.to_owned(), operation: operation.into(), code, text: error.to_string(), hint }
}

impl SameHostRegion {
    /// Creates a region of host memory. `rail` is used in messages.
    pub(crate) fn new(rail: &str, memory: MemoryRange) -> Result<SameHostRegion, FabricError> {
        let (address, bytes) = (memory.address, memory.bytes as u64);
        if memory.cuda_device.is_some() || address == 0 || bytes == 0 || address.checked_add(bytes).is_none() {
            let text = "expected host memory that is neither empty nor wraps around";
            return Err(mistake(rail, format!("registration of {bytes} B"), text));
        }
        Ok(SameHostRegion { address, bytes, file: memory_file::containing(address, bytes) })
    }

    /// Returns the description that a peer needs to access the region.
    pub(crate) fn remote(&self) -> RemoteRegion {
        let file = self.file.as_ref();
        RemoteRegion {
            key: file.map_or(0, |file| key_of(file.name())),
            base: file.map_or(0, |file| self.address - file.address()),
            bytes: self.bytes,
        }
    }

    /// Returns the key of the file that contains the byte at `offset`, and the byte's offset in the file.
    pub(crate) fn place(&self, offset: u64) -> Option<(u64, u64)> {
        let file = self.file.as_ref()?;
        Some((key_of(file.name()), self.address - file.address() + offset))
    }
}

impl Peers {
    /// Adds the peer with this address ([`address`]). Returns its index.
    pub fn add(&mut self, rail: &str, address: &[u8]) -> Result<usize, FabricError> {
        let number = self.0.len();
        let what = format!("connecting to peer {number}");
        let word = |at: usize| address.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let (Some(pid), Some(descriptor), Some(file), Some(low), Some(high), ADDRESS_BYTES) =
            (word(0), word(4), word(8), word(12), word(16), address.len())
        else {
            let text = format!("its address has {} bytes instead of {ADDRESS_BYTES}", address.len());
            return Err(mistake(rail, what, text));
        };
        if u64::from(high) << 32 | u64::from(low) != process_namespace() {
            let text = "its process is in another container (PID namespace); start all ranks in one";
            return Err(mistake(rail, what, text));
        }
        let process = watch(pid).map_err(|error| failed(rail, what, &error))?;
        let inbox = FileName { pid, descriptor: descriptor as i32, number: file };
        self.0.push(Some(Peer { process, inbox, has_ended: false, outbox: None, memory: Vec::new() }));
        Ok(number)
    }

    /// Removes a peer. Its index is not reused.
    pub fn remove(&mut self, rail: &str, peer: usize) -> Result<(), FabricError> {
        let known = self.0.get_mut(peer).and_then(Option::take);
        known.map(|_| ()).ok_or_else(|| mistake(rail, format!("removing peer {peer}"), "no such peer"))
    }

    /// Returns a peer, or `None` if it was removed.
    pub fn get(&self, peer: usize) -> Option<&Peer> {
        self.0.get(peer)?.as_ref()
    }

    /// Returns the peer of a transfer, or an error if its process has exited.
    #[inline]
    fn of(&mut self, rail: &str, t: &Transfer) -> Result<&mut Peer, FabricError> {
        match self.0.get_mut(t.peer) {
            Some(Some(peer)) if !peer.has_ended => Ok(peer),
            Some(Some(_)) => Err(mistake(rail, operation(t), "the peer's process exited")),
            _ => Err(mistake(rail, operation(t), "no such peer")),
        }
    }

    /// Returns the mapped file of the peer's bytes, and the offset of the first byte in the file.
    #[inline]
    pub fn reach(
        &mut self,
        rail: &str,
        region: &SameHostRegion,
        t: &Transfer,
    ) -> Result<(&Arc<MemoryFile>, u64), FabricError> {
        let inside = |offset: u64, bytes: u64| offset <= bytes && t.bytes <= bytes - offset;
        let peer = self.of(rail, t)?;
        let number = match peer.memory.iter().position(|(key, _)| *key == t.remote.key) {
            Some(number) => number,
            None if t.remote.key == 0 => {
                let text = "the peer's region is not in memory that other processes can map";
                return Err(mistake(rail, operation(t), text));
            }
            None => {
                let name = name_of(peer.inbox.pid, t.remote.key);
                let opened = MemoryFile::open(name).map_err(|error| failed(rail, operation(t), &error))?;
                peer.memory.push((t.remote.key, Arc::new(opened)));
                peer.memory.len() - 1
            }
        };
        let file = &peer.memory[number].1;
        let at = t.remote.base.checked_add(t.remote_offset);
        let fits = inside(t.local_offset, region.bytes)
            && inside(t.remote_offset, t.remote.bytes)
            && at.is_some_and(|at| inside(at, file.bytes()));
        match (at, fits) {
            (Some(at), true) => Ok((file, at)),
            _ => Err(mistake(
                rail,
                operation(t),
                format!(
                    "offset {} of {} B here, {} of {} B there",
                    t.local_offset, region.bytes, t.remote_offset, t.remote.bytes
                ),
            )),
        }
    }

    /// Sends an immediate, after its bytes have been copied. Returns `false` if the peer's queue is full.
    pub fn signal(&mut self, rail: &str, t: &Transfer, immediate: u32) -> Result<bool, FabricError> {
        let peer = self.of(rail, t)?;
        let outbox = match &mut peer.outbox {
            Some(outbox) => outbox,
            none => {
                let opened = Outbox::open(peer.inbox).map_err(|error| failed(rail, operation(t), &error))?;
                none.insert(opened)
            }
        };
        Ok(outbox.send(immediate))
    }

    /// Checks which peers' processes have exited.
    #[cold]
    pub fn look(&mut self) {
        for peer in self.0.iter_mut().flatten() {
            let Some(process) = &peer.process else { continue };
            let mut process = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
            peer.has_ended |= poll(&mut process, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
        }
    }
}
