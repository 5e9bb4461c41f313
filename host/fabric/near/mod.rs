//! A rail between processes of one machine that are each other's: bytes are copied straight into the peer's memory, which is
//! mapped here; immediates go through queues in shared memory. What moves the bytes of modelled cards: it needs no libfabric, and
//! a small write costs it tens of nanoseconds, so that the time that passes is the model's.
//!
//! A region that peers write to or read lies in memory of [`Place::File`](crate::cuda::Place); what is only written *from* may be any
//! host memory. Small writes are copied by the thread that posts, others by [`Movers`] where there are some. A write is complete when
//! its bytes are in the peer's memory. Nothing is left behind by a process that is killed: the files have no names.

mod inbox;
mod movers;

pub use movers::Movers;

use super::{
    Access, BareLoop, Completion, FabricError, Memory, Message, Post, Rail, RailLimits, RemoteRegion, Transfer,
    mistake, writes_and_reads_alone,
};
use crate::memory_file::{self, FileName, MemoryFile};
use crossbeam_utils::Backoff;
use inbox::{Inbox, Outbox};
use movers::Job;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Up to here a copy takes no longer than to hand it over.
const SMALL: u64 = 8 << 10;
/// Writes that are with the movers, at most.
const OUTSTANDING: usize = 8192;
/// Polls between two looks whether the peers' processes are there.
const LOOK_EVERY: u32 = 4096;

const LIMITS: RailLimits = RailLimits {
    max_transfer_bytes: u64::MAX,
    max_outstanding: OUTSTANDING,
    immediate_bytes: 4,
    link_bits_per_second: None,
    cuda_memory: false,
};

/// See the module.
#[derive(Debug)]
pub struct NearRail {
    name: String,
    inbox: Inbox,
    peers: Vec<Option<Peer>>,
    movers: Option<Arc<Movers>>,
    /// With the movers, in the order of their posts.
    jobs: VecDeque<(u64, Arc<Job>)>,
    done: Vec<u64>,
    polls: u32,
}

/// A registered region: its memory, and the file it lies in.
#[derive(Clone, Debug)]
pub struct NearRegion {
    address: u64,
    bytes: u64,
    file: Option<Arc<MemoryFile>>,
}

#[derive(Debug)]
struct Peer {
    /// Tells when it has ended; nothing where the system has no such descriptors: then the bootstrap alone notices.
    process: Option<OwnedFd>,
    inbox: FileName,
    has_ended: bool,
    outbox: Option<Outbox>,
    /// Its memory, by the key of its regions.
    memory: Vec<(u64, Arc<MemoryFile>)>,
}

/// Number and descriptor of a file in one word.
fn key_of(name: FileName) -> u64 {
    u64::from(name.number) << 32 | u64::from(name.descriptor as u32)
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

impl NearRail {
    /// Opens one; `name` is for messages.
    ///
    /// # Errors
    /// When there is no memory for its inbox.
    pub fn open(name: &str, movers: Option<Arc<Movers>>) -> Result<NearRail, FabricError> {
        let inbox = Inbox::new().map_err(|error| failed(name, "opening an inbox in shared memory", &error))?;
        Ok(NearRail {
            name: name.to_owned(),
            inbox,
            peers: Vec::new(),
            movers,
            jobs: VecDeque::new(),
            done: Vec::new(),
            polls: 0,
        })
    }

    fn meet(&self, peer: usize, address: &[u8]) -> Result<Peer, FabricError> {
        let what = format!("meeting peer {peer}");
        let word = |at: usize| address.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
        let (Some(pid), Some(descriptor), Some(number), Some(low), Some(high), 20) =
            (word(0), word(4), word(8), word(12), word(16), address.len())
        else {
            return Err(mistake(&self.name, what, format!("its address has {} bytes, 20 are expected", address.len())));
        };
        if u64::from(high) << 32 | u64::from(low) != process_namespace() {
            let text = "its process is in another container (PID namespace): start all ranks in one";
            return Err(mistake(&self.name, what, text));
        }
        let process = watch(pid).map_err(|error| failed(&self.name, what, &error))?;
        let inbox = FileName { pid, descriptor: descriptor as i32, number };
        Ok(Peer { process, inbox, has_ended: false, outbox: None, memory: Vec::new() })
    }

    /// The peer's bytes, mapped, and for a mover the file that keeps them so: a copy made here and now needs none.
    #[inline]
    fn reach(&mut self, region: &NearRegion, t: &Transfer) -> Result<(*mut u8, Option<Arc<MemoryFile>>), FabricError> {
        let inside = |offset: u64, bytes: u64| offset <= bytes && t.bytes <= bytes - offset;
        let peer = peer_of(&mut self.peers, &self.name, t)?;
        let number = match peer.memory.iter().position(|(key, _)| *key == t.remote.key) {
            Some(number) => number,
            None if t.remote.key == 0 => {
                let text = "the peer's region is not in memory that other processes map";
                return Err(mistake(&self.name, operation(t), text));
            }
            None => {
                let name = FileName {
                    pid: peer.inbox.pid,
                    descriptor: t.remote.key as u32 as i32,
                    number: (t.remote.key >> 32) as u32,
                };
                let opened = MemoryFile::open(name).map_err(|error| failed(&self.name, operation(t), &error))?;
                peer.memory.push((t.remote.key, Arc::new(opened)));
                peer.memory.len() - 1
            }
        };
        let file = &peer.memory[number].1;
        let at = t.remote.base.checked_add(t.remote_offset);
        let fits = inside(t.local_offset, region.bytes)
            && inside(t.remote_offset, t.remote.bytes)
            && at.is_some_and(|at| inside(at, file.bytes()));
        let (Some(at), true) = (at, fits) else {
            let text = format!(
                "offset {} of {} B here, {} of {} B there",
                t.local_offset, region.bytes, t.remote_offset, t.remote.bytes
            );
            return Err(mistake(&self.name, operation(t), text));
        };
        let kept = (self.movers.is_some() && t.bytes > SMALL).then(|| file.clone());
        Ok(((file.address() + at) as *mut u8, kept))
    }

    /// Copies now or soon, unless too much is under way.
    ///
    /// # Safety
    /// Both stretches are valid and stay so until the token's completion.
    #[inline]
    unsafe fn copy(&mut self, source: *const u8, target: *mut u8, t: &Transfer, file: Option<Arc<MemoryFile>>) -> Post {
        match (&self.movers, file) {
            (Some(movers), Some(file)) => {
                if self.jobs.len() >= OUTSTANDING {
                    return Post::Again;
                }
                // SAFETY: the caller's contract; the job is reported only when it is done, and `drop` waits for it.
                let job = unsafe { movers.copy(source, target, t.bytes, t.remote_offset, &file) };
                self.jobs.push_back((t.token, job));
            }
            _ => {
                // SAFETY: the caller's contract. They may be the same memory, of a put onto itself.
                unsafe { std::ptr::copy(source, target, t.bytes as usize) };
                self.done.push(t.token);
            }
        }
        Post::Accepted
    }

    /// Sends the immediate behind bytes that are there.
    fn signal(&mut self, t: &Transfer, immediate: u32) -> Result<bool, FabricError> {
        let peer = peer_of(&mut self.peers, &self.name, t)?;
        let outbox = match &mut peer.outbox {
            Some(outbox) => outbox,
            none => {
                let opened = Outbox::open(peer.inbox).map_err(|error| failed(&self.name, operation(t), &error))?;
                none.insert(opened)
            }
        };
        Ok(outbox.send(immediate))
    }

    /// Looks which peers' processes have ended.
    #[cold]
    fn look(&mut self) {
        for peer in self.peers.iter_mut().flatten() {
            let Some(process) = &peer.process else { continue };
            let mut process = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
            peer.has_ended |= poll(&mut process, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
        }
    }
}

fn operation(t: &Transfer) -> String {
    format!("transfer of {} B with peer {}", t.bytes, t.peer)
}

/// The peer of a transfer, as long as its process is there. (Of two fields of the rail, so that the others can be used beside it.)
#[inline]
fn peer_of<'a>(peers: &'a mut [Option<Peer>], rail: &str, t: &Transfer) -> Result<&'a mut Peer, FabricError> {
    match peers.get_mut(t.peer) {
        Some(Some(peer)) if !peer.has_ended => Ok(peer),
        Some(Some(_)) => Err(mistake(rail, operation(t), "the peer's process has ended")),
        _ => Err(mistake(rail, operation(t), "there is no such peer")),
    }
}

#[cold]
fn failed(rail: &str, operation: impl Into<String>, error: &io::Error) -> FabricError {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => "all ranks must be of one user, and none set-user-id".to_owned(),
        io::ErrorKind::NotFound => "has the peer's process ended?".to_owned(),
        _ => String::new(),
    };
    let code = error.raw_os_error().unwrap_or(libc::EIO);
    FabricError { rail: rail.to_owned(), operation: operation.into(), code, text: error.to_string(), hint }
}

impl Rail for NearRail {
    type Region = NearRegion;

    fn name(&self) -> &str {
        &self.name
    }

    fn limits(&self) -> &RailLimits {
        &LIMITS
    }

    fn address(&self) -> Result<Vec<u8>, FabricError> {
        let FileName { pid, descriptor, number } = self.inbox.name();
        let words = [pid, descriptor as u32, number].map(u32::to_le_bytes);
        Ok([words.as_flattened(), &process_namespace().to_le_bytes()].concat())
    }

    fn add_peer(&mut self, address: &[u8]) -> Result<usize, FabricError> {
        let number = self.peers.len();
        let peer = self.meet(number, address)?;
        self.peers.push(Some(peer));
        Ok(number)
    }

    fn remove_peer(&mut self, peer: usize) -> Result<(), FabricError> {
        let known = self.peers.get_mut(peer).and_then(Option::take);
        known.map(|_| ()).ok_or_else(|| mistake(&self.name, format!("removing peer {peer}"), "there is none"))
    }

    unsafe fn register(&mut self, memory: Memory, _access: Access) -> Result<NearRegion, FabricError> {
        let (address, bytes) = (memory.address, memory.bytes as u64);
        if memory.cuda_device.is_some() || address == 0 || bytes == 0 || address.checked_add(bytes).is_none() {
            let text = "memory of the host is needed, that neither is empty nor wraps";
            return Err(mistake(&self.name, format!("registration of {bytes} B"), text));
        }
        Ok(NearRegion { address, bytes, file: memory_file::containing(address, bytes) })
    }

    fn remote(&self, region: &NearRegion) -> RemoteRegion {
        let file = region.file.as_ref();
        RemoteRegion {
            key: file.map_or(0, |file| key_of(file.name())),
            base: file.map_or(0, |file| region.address - file.address()),
            bytes: region.bytes,
        }
    }

    #[inline]
    unsafe fn write(&mut self, region: &NearRegion, t: &Transfer) -> Result<Post, FabricError> {
        if t.bytes > 0 {
            let (target, file) = self.reach(region, t)?;
            let source = (region.address + t.local_offset) as *const u8;
            if t.immediate.is_none() {
                // SAFETY: checked by `reach`; the caller's contract for the source, and the file keeps the target.
                return Ok(unsafe { self.copy(source, target, t, file) });
            }
            // Nobody may see the immediate before the bytes: copied here and now. Modelled cards send theirs by itself.
            // SAFETY: as above.
            unsafe { std::ptr::copy(source, target, t.bytes as usize) };
        }
        if let Some(immediate) = t.immediate
            && !self.signal(t, immediate)?
        {
            return Ok(Post::Again);
        }
        self.done.push(t.token);
        Ok(Post::Accepted)
    }

    unsafe fn read(&mut self, region: &NearRegion, t: &Transfer) -> Result<Post, FabricError> {
        let (source, file) = self.reach(region, t)?;
        let target = (region.address + t.local_offset) as *mut u8;
        // SAFETY: checked by `reach`; the caller's contract for the target, and the file keeps the source.
        Ok(unsafe { self.copy(source, target, t, file) })
    }

    #[inline]
    fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), FabricError> {
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(LOOK_EVERY) {
            self.look();
        }
        completions.extend(self.done.drain(..).map(|token| Completion::Done { token }));
        while self.jobs.front().is_some_and(|(_, job)| job.is_done()) {
            completions.extend(self.jobs.pop_front().map(|(token, _)| Completion::Done { token }));
        }
        self.inbox.take(|value| completions.push(Completion::Immediate { value }));
        Ok(())
    }

    writes_and_reads_alone!();

    fn counted(&self) -> Option<(u64, u64, u64)> {
        None
    }
}

impl Drop for NearRail {
    /// The movers must have done with our memory. They copy and wait for nothing, so that has an end.
    fn drop(&mut self) {
        let backoff = Backoff::new();
        while self.jobs.iter().any(|(_, job)| !job.is_done()) {
            backoff.snooze();
        }
    }
}

#[cfg(test)]
mod tests;
