//! Maximum time that the host waits for a kernel. The kernel's own waits end earlier. This limit applies to kernels
//! that do not start, or that are stuck outside a wait.
//!
//! The host also collects progress ([`watch`](super::watch)): of this kernel, by a hash of its memory, and of others,
//! through the bootstrap. It reports this rank's progress to the other ranks, and both kinds to the kernel, whose waits
//! then restart their deadlines.

use super::watch::{HostWait, Work};
use super::{GinError, World};
use ginlab_bootstrap::Bootstrap;
use ginlab_proxy::ProxyGroup;
use kernels::gin::{Control, Inbox, SIGNALS};
use kernels::ring::Status;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::offset_of;
use std::time::Duration;

/// Number of checks of a kernel's memory during the timeout of its waits. The waits must be notified of progress before
/// they time out.
const CHECKS: u32 = 16;
/// Number of words that are hashed at the start of each object of the heap.
const HEAD: usize = 512;

/// Kernels of a world that the host waits for.
#[derive(Debug)]
pub(super) struct Kernels<'a> {
    world: &'a World,
    what: &'a str,
    /// Whether a call of a kernel is known to have failed.
    pub has_failed: bool,
}

impl Work for Kernels<'_> {
    type Error = GinError;

    fn pulse(&mut self, is_due: bool) -> Result<Option<u64>, GinError> {
        let world = self.world;
        if let Some(error) = world.group.as_ref().and_then(|group| group.failures().next()) {
            // The kernel reports the affected call.
            world.give_up(Status::STOPPED, &error, error.is_timeout())?;
        }
        self.has_failed = self.has_failed || world.ends_by_report()?;
        is_due.then(|| world.pulse()).transpose()
    }

    /// Notifies the kernels of progress, so that their waits restart their deadlines.
    fn progressed(&mut self) -> Result<(), GinError> {
        let (abort, mut seen) = (&self.world.abort, [0u64]);
        abort.read(offset_of!(Control, seen), &mut seen)?;
        Ok(abort.write(offset_of!(Control, seen), &[seen[0].wrapping_add(1)])?)
    }

    fn late(&mut self, limit: Duration) -> GinError {
        let text = no_life(self.what, limit, self.world.device.sharers());
        GinError::Call { text, stop: Status::DEADLINE, timed_out: true }
    }

    /// Aborts the kernels' waits: a thread that waits for a signal does not check its ring.
    fn abort(&mut self, error: &GinError) {
        let stop = if let GinError::Call { stop, .. } = error { *stop } else { Status::ENDED };
        // The first failure is returned, instead of that of the abort.
        let _ = self.world.give_up(stop, error, error.is_timeout());
        if stop == Status::ENDED {
            self.world.group.iter().for_each(ProxyGroup::stop);
        }
    }
}

impl World {
    /// Returns the state of a wait for kernels, and the kernels. The wait ends if neither this PE nor another rank has
    /// made progress for longer than the longest wait of the kernels.
    pub(super) fn watch<'a>(&'a self, ranks: &'a mut Bootstrap, what: &'a str) -> (HostWait<'a>, Kernels<'a>) {
        // Reading the pulse occupies a GPU's bus for about 100 us, so short kernels are not checked.
        let every = Duration::from_nanos(self.description.timeout_ns) / CHECKS;
        let watch = HostWait::new(ranks, every).with_limit(self.host_timeout());
        (watch, Kernels { world: self, what, has_failed: false })
    }

    /// Returns the host's limit for progress. It is longer than the kernels' own waits, so that these end first. If
    /// busy threads share cores, a kernel of the emulated device checks its clock late, so the factor is larger: twice
    /// the timeout is too short with five busy threads per core.
    pub(super) fn host_timeout(&self) -> Duration {
        Duration::from_nanos(self.description.timeout_ns) * if self.shares_core { 4 } else { 2 }
    }

    /// Returns a hash of this PE's progress. It changes if a signal is raised, a ring advances, a long wait of its
    /// kernel ends, or bytes arrive at the start of an object or as a message.
    fn pulse(&self) -> Result<u64, GinError> {
        let mut words = vec![0u64; SIGNALS as usize];
        let mut hasher = DefaultHasher::new();
        for plane in [&self.heap, &self.far] {
            plane.read(0, &mut words)?;
            words.hash(&mut hasher);
        }
        let heads = self.space.taken().map(|(first, bytes)| (first, HEAD.min(bytes as usize / 8)));
        let slots = self.inboxes.iter().flat_map(|inbox| slots(inbox, self.n_pes()));
        for (first, count) in heads.chain(slots) {
            self.heap.read(first as usize, &mut words[..count])?;
            words[..count].hash(&mut hasher);
        }
        let mut moved = [0u64];
        self.abort.read(offset_of!(Control, moved), &mut moved)?;
        moved.hash(&mut hasher);
        self.group.iter().flat_map(ProxyGroup::rings).for_each(|ring| ring.state().hash(&mut hasher));
        self.cards.as_ref().map(|cards| cards.pulse()).transpose()?.hash(&mut hasher);
        Ok(hasher.finish())
    }
}

/// Returns the offset of each message slot, and the number of words to hash. These are the leading words, which contain
/// the round number.
fn slots(inbox: &Inbox, pes: u32) -> impl Iterator<Item = (u64, usize)> {
    let Inbox { offset, capacity, .. } = *inbox;
    (0..u64::from(pes) * Inbox::ROUNDS).map(move |number| (offset + number * 2 * capacity, 2))
}

fn no_life(what: &str, limit: Duration, sharers: u32) -> String {
    let whose = if sharers > 1 { format!(" ({sharers} PEs share it)") } else { String::new() };
    format!(
        "{what}: no progress within {:.0} s; check whether all blocks that wait for each other are resident on the \
         GPU{whose}; a kernel that computes longer without a call must report progress by `progressed` of its world, \
         or use a longer timeout",
        limit.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadline_error_names_sharers() {
        let text = no_life("kernel", Duration::from_secs(60), 4);
        assert!(text.starts_with("kernel: no progress within 60 s") && text.contains("(4 PEs share it)"));
    }

    #[test]
    fn every_inbox_slot_is_hashed() {
        let inbox = Inbox { offset: 512, capacity: 64, signals: super::super::Signal(0) };
        let all: Vec<_> = slots(&inbox, 3).map(|(first, _)| first).collect();
        assert_eq!(all, [512, 640, 768, 896, 1024, 1152]);
        assert_eq!(512 + Inbox::bytes(64, 3), 1152 + 128);
    }
}
