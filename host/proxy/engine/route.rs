//! Validation of commands: whether the regions and peers that a command names exist.

use super::{Engine, EngineError};
use crate::stage::Stage;
use ginlab_fabric::{Rail, RemoteRegion, offsets};
use ginlab_rails as rails;
use kernels::command::{Command, MOST_ADDED, Opcode, SIGNALS};

/// A registered range of local memory, on every rail.
pub(super) struct Region<R: Rail> {
    pub(super) bytes: u64,
    pub(super) on_rail: Vec<R::Region>,
    /// Staging copies from the kernel's memory, if the rails read a copy.
    pub(super) staged_from: Option<Stage>,
}

/// A piece queued for a rail. It is small, because each put is copied through this queue.
#[derive(Clone, Copy)]
pub(super) struct Queued {
    pub(super) ticket: u64,
    pub(super) local_offset: u64,
    pub(super) remote_offset: u64,
    pub(super) bytes: u64,
    /// The peer's region, as the index of its first entry in [`Peers`].
    pub(super) remote: u32,
    pub(super) peer: u16,
    pub(super) local_region: u16,
    pub(super) immediate: Option<u32>,
    pub(super) read: bool,
}

impl rails::Queueable for Queued {
    #[inline(always)]
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Validated regions of a command: the local index, and the peer's region as the index of its first entry in [`Peers`].
#[derive(Clone, Copy)]
pub(super) struct Route {
    pub(super) local: usize,
    pub(super) remote: usize,
}

/// Remote descriptors of all peers' regions, in one flat table ordered by peer, region and rail.
#[derive(Default)]
pub(super) struct Peers {
    pub(super) table: Vec<RemoteRegion>,
    pub(super) peers: usize,
    pub(super) regions: usize,
    pub(super) rails: usize,
}

impl Peers {
    /// Returns the index of the first entry of a peer's region, which has one entry per rail. `None` if the region does
    /// not exist.
    #[inline]
    pub(super) fn first_entry(&self, peer: usize, region: usize) -> Option<usize> {
        (peer < self.peers && region < self.regions).then_some((peer * self.regions + region) * self.rails)
    }
}

impl<R: Rail> Engine<R> {
    /// Checks that the command's regions, ranges, peer and signal exist. Returns its route.
    #[inline]
    pub(super) fn check(&self, command: &Command) -> Result<Route, EngineError> {
        let (local, local_offset, remote, remote_offset) = match command.opcode {
            Opcode::Get => {
                (command.destination_region, command.destination_offset, command.source_region, command.source_offset)
            }
            // The payload is inline in the command.
            Opcode::PutValue => (0, 0, command.destination_region, command.destination_offset),
            _ => (command.source_region, command.source_offset, command.destination_region, command.destination_offset),
        };
        let inside = |offset: u64, bytes: u64| offset.checked_add(command.bytes).is_some_and(|end| end <= bytes);
        let local_fits = self.regions.get(local as usize).is_some_and(|region| inside(local_offset, region.bytes));
        let entry = self.peers.first_entry(command.peer as usize, remote as usize);
        let remote_region = entry.and_then(|entry| self.peers.table.get(entry));
        let remote_fits = remote_region.is_some_and(|region| inside(remote_offset, region.bytes));
        // A get into the staging copy would never reach the device.
        let read_into_copy = command.opcode == Opcode::Get
            && self.stages
            && self.regions.get(local as usize).is_some_and(|region| region.staged_from.is_some());
        if let (Some(remote), true) = (entry, local_fits && remote_fits && self.signal_fits(command) && !read_into_copy)
        {
            return Ok(Route { local: local as usize, remote });
        }
        Err(EngineError::Refused(format!(
            "invalid {}: this rank has {} regions of {:?} bytes and {} peers; a signal number must be below {SIGNALS}, \
             its increment at most {MOST_ADDED}, and its target a rank with a credit account; gets into staged regions \
             are not supported",
            described(command),
            self.regions.len(),
            self.regions.iter().map(|region| region.bytes).collect::<Vec<_>>(),
            self.peers.peers
        )))
    }
}

/// Returns the command as text for messages.
fn described(command: &Command) -> String {
    let Command { opcode, bytes, peer, immediate, .. } = command;
    let from = offsets::local(command.source_offset, command.source_region);
    let to = offsets::local(command.destination_offset, command.destination_region);
    format!("{opcode:?} of {bytes} B from {from} to {to}, peer {peer}, immediate {immediate}")
}
