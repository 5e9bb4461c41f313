//! The peers of a rail on one machine: each peer's process, its memory, which is mapped here, and the queue of immediates to it.
//!
//! All rails that reach their peers by shared memory use this: [`SameHostRail`](super::SameHostRail), [`WorstRail`](crate::worst::WorstRail).

use super::inbox::Outbox;
use crate::{FabricError, Memory, RemoteRegion, Transfer, mistake};
use ginlab_base::memory_file::{self, FileName, MemoryFile};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Bytes of an address: process, descriptor and number of the inbox, and the PID namespace.
const ADDRESS_BYTES: usize = 20;

/// A registered region: its memory, and the file it lies in.
#[derive(Clone, Debug)]
pub struct SameHostRegion {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) file: Option<Arc<MemoryFile>>,
}

/// Peers by number; `None` for one that was removed.
#[derive(Debug, Default)]
pub(crate) struct Peers(Vec<Option<Peer>>);

/// A peer's process and memory.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Tells when it has ended; nothing where the system has no such descriptors: then the bootstrap alone notices.
    process: Option<OwnedFd>,
    pub inbox: FileName,
    pub has_ended: bool,
    outbox: Option<Outbox>,
    /// Its memory, by the key of its regions.
    memory: Vec<(u64, Arc<MemoryFile>)>,
}

/// Number and descriptor of a file in one word.
pub(crate) fn key_of(name: FileName) -> u64 {
    u64::from(name.number) << 32 | u64::from(name.descriptor as u32)
}

/// The file of a process with this key.
pub(crate) fn name_of(pid: u32, key: u64) -> FileName {
    FileName { pid, descriptor: key as u32 as i32, number: (key >> 32) as u32 }
}

/// Which processes can see each other by their numbers.
fn process_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
}

/// A descriptor that tells when a process has ended.
fn watch(pid: u32) -> io::Result<Option<OwnedFd>> {
    // SAFETY: a system call with two numbers; it returns a new descriptor or an error.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    if process >= 0 {
        // SAFETY: a descriptor of ours that nobody else knows; they are small numbers.
        return Ok(Some(unsafe { OwnedFd::from_raw_fd(process as i32) }));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOSYS | libc::EPERM) => Ok(None),
        _ => Err(error),
    }
}

/// The address of a rail of this process with this inbox.
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
        io::ErrorKind::PermissionDenied => "all ranks must be of one user, and none set-user-id".to_owned(),
        io::ErrorKind::NotFound => "has the peer's process ended?".to_owned(),
        _ => String::new(),
    };
    let code = error.raw_os_error().unwrap_or(libc::EIO);
    FabricError { rail: rail.to_owned(), operation: operation.into(), code, text: error.to_string(), hint }
}

impl SameHostRegion {
    /// Memory of the host, for the rail of this name.
    pub(crate) fn new(rail: &str, memory: Memory) -> Result<SameHostRegion, FabricError> {
        let (address, bytes) = (memory.address, memory.bytes as u64);
        if memory.cuda_device.is_some() || address == 0 || bytes == 0 || address.checked_add(bytes).is_none() {
            let text = "memory of the host is needed, that neither is empty nor wraps";
            return Err(mistake(rail, format!("registration of {bytes} B"), text));
        }
        Ok(SameHostRegion { address, bytes, file: memory_file::containing(address, bytes) })
    }

    /// What a peer needs to reach it.
    pub(crate) fn remote(&self) -> RemoteRegion {
        let file = self.file.as_ref();
        RemoteRegion {
            key: file.map_or(0, |file| key_of(file.name())),
            base: file.map_or(0, |file| self.address - file.address()),
            bytes: self.bytes,
        }
    }

    /// The file of these bytes and where they begin in it.
    pub(crate) fn place(&self, offset: u64) -> Option<(u64, u64)> {
        let file = self.file.as_ref()?;
        Some((key_of(file.name()), self.address - file.address() + offset))
    }
}

impl Peers {
    /// Adds the peer of this address ([`address`]) and returns its number.
    pub fn add(&mut self, rail: &str, address: &[u8]) -> Result<usize, FabricError> {
        let number = self.0.len();
        let what = format!("meeting peer {number}");
        let word = |at: usize| address.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let (Some(pid), Some(descriptor), Some(file), Some(low), Some(high), ADDRESS_BYTES) =
            (word(0), word(4), word(8), word(12), word(16), address.len())
        else {
            let text = format!("its address has {} bytes, {ADDRESS_BYTES} are expected", address.len());
            return Err(mistake(rail, what, text));
        };
        if u64::from(high) << 32 | u64::from(low) != process_namespace() {
            let text = "its process is in another container (PID namespace): start all ranks in one";
            return Err(mistake(rail, what, text));
        }
        let process = watch(pid).map_err(|error| failed(rail, what, &error))?;
        let inbox = FileName { pid, descriptor: descriptor as i32, number: file };
        self.0.push(Some(Peer { process, inbox, has_ended: false, outbox: None, memory: Vec::new() }));
        Ok(number)
    }

    /// Forgets a peer; its number is not used again.
    pub fn remove(&mut self, rail: &str, peer: usize) -> Result<(), FabricError> {
        let known = self.0.get_mut(peer).and_then(Option::take);
        known.map(|_| ()).ok_or_else(|| mistake(rail, format!("removing peer {peer}"), "there is none"))
    }

    /// A peer, as long as it has not been removed.
    pub fn get(&self, peer: usize) -> Option<&Peer> {
        self.0.get(peer)?.as_ref()
    }

    /// The peer of a transfer, as long as its process is there.
    #[inline]
    fn of(&mut self, rail: &str, t: &Transfer) -> Result<&mut Peer, FabricError> {
        match self.0.get_mut(t.peer) {
            Some(Some(peer)) if !peer.has_ended => Ok(peer),
            Some(Some(_)) => Err(mistake(rail, operation(t), "the peer's process has ended")),
            _ => Err(mistake(rail, operation(t), "there is no such peer")),
        }
    }

    /// The file of the peer's bytes, mapped, and the offset of the first of them in it.
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
                let text = "the peer's region is not in memory that other processes map";
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

    /// Sends the immediate behind bytes that are there; false when the peer has to take earlier ones first.
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

    /// Looks which peers' processes have ended.
    #[cold]
    pub fn look(&mut self) {
        for peer in self.0.iter_mut().flatten() {
            let Some(process) = &peer.process else { continue };
            let mut process = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
            peer.has_ended |= poll(&mut process, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
        }
    }
}
