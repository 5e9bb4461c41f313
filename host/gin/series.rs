//! Series of kernels, which are launched into streams without a wait of the CPU for each, and CPU-initiated transfers.

use super::{GinError, Plain, Signal, Sym, World};
use ginlab_base::backoff::Backoff;
use ginlab_base::progress;
use ginlab_bootstrap::Bootstrap;
use ginlab_cuda::{Event, Stream, wait_for};
use kernels::command::{Command, signal_immediate};
use kernels::gin::HEAP;
use std::time::{Duration, Instant};

/// Interval of the checks for failed peers and proxies during a wait.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Number of polls of the wait's condition between two reads of the clock.
const LOOKS: u32 = 256;
/// Maximum sleep between two polls, if threads share cores.
const REST: Duration = Duration::from_millis(1);

/// A CPU-initiated put.
#[derive(Clone, Copy, Debug)]
pub struct HostPut<T> {
    /// Destination, on the other PE.
    pub to: Sym<T>,
    /// Source, in this PE's heap; not longer than the destination.
    pub from: Sym<T>,
    /// Signal of the other PE that the put increments by 1; `None` for a put without a signal.
    pub signal: Option<Signal>,
    /// Number of the other PE.
    pub peer: u32,
}

impl World {
    /// Waits until `done` returns `true`, for example for an event of a stream or a word that a kernel writes. Polls
    /// without sleeping if threads have their own cores. In the meantime, the call checks for failures of the series'
    /// kernels, failed peers, failed proxies and interrupts. Each of these aborts the kernels' waits.
    ///
    /// # Errors
    /// Returns the same errors as [`launch`](World::launch). Returns [`GinError::Call`] with `what` if neither this PE
    /// nor another rank makes progress for twice the world's timeout (four times if busy threads share cores).
    pub fn wait_for(
        &self,
        ranks: &mut Bootstrap,
        what: &'static str,
        mut done: impl FnMut() -> Result<bool, GinError>,
    ) -> Result<(), GinError> {
        let (mut watch, mut kernels) = self.watch(ranks, what);
        let (mut looked, mut looks, mut backoff) = (Instant::now(), 0u32, Backoff::every(1).max_sleep(REST));
        while !done()? {
            looks = looks.wrapping_add(1);
            if self.shares_core {
                backoff.idle();
            } else if !looks.is_multiple_of(LOOKS) {
                std::hint::spin_loop();
                continue;
            }
            if looked.elapsed() < LOOK_EVERY {
                continue;
            }
            looked = Instant::now();
            watch.check(&mut kernels)?;
            if kernels.has_failed {
                self.reported(what)?;
            }
        }
        progress::record();
        Ok(())
    }

    /// Like [`wait_for`](World::wait_for), but waits until the stream has finished all work appended so far. If a
    /// kernel of the series failed, returns its failure after the stream's kernels have ended.
    ///
    /// # Errors
    /// Returns the same errors as [`wait_for`](World::wait_for).
    pub fn wait_for_stream(
        &self,
        ranks: &mut Bootstrap,
        what: &'static str,
        stream: &Stream,
    ) -> Result<Event, GinError> {
        let event = stream.event()?;
        let waited = self.wait_for(ranks, what, || Ok(event.is_complete()?));
        if waited.is_err() {
            // The kernels were requested to end. Until they have ended, they use the world's memory.
            stream.discard();
            let _ = wait_for(self.ending(), || event.is_complete(), || Err(GinError::Interrupted));
        }
        waited.and(self.reported(what))?;
        Ok(event)
    }

    /// Returns whether the heap of PE `pe` is mapped here. True for this PE and for PEs reached over NVLink; other PEs
    /// are reached over rails.
    pub fn is_mapped(&self, pe: u32) -> bool {
        pe == self.my_pe() || matches!(self.opened.get(pe as usize), Some(Some(_)))
    }

    /// Returns the address of an object of a PE, for copies by this device. `None` if the PE is reached over rails.
    pub fn address_of<T: Plain>(&self, object: Sym<T>, pe: u32) -> Option<u64> {
        self.heap_at(pe).map(|heap| heap + object.offset())
    }

    /// Like [`address_of`](World::address_of), for the word of a signal to which mapped PEs add. A store to this word
    /// overwrites their additions.
    pub fn address_of_signal(&self, signal: Signal, pe: u32) -> Option<u64> {
        self.heap_at(pe).map(|heap| heap + u64::from(signal.0) * 8)
    }

    fn heap_at(&self, pe: u32) -> Option<u64> {
        if pe == self.my_pe() {
            return Some(self.heap.address());
        }
        self.opened.get(pe as usize)?.as_ref().map(ginlab_cuda::OpenedMemory::address)
    }

    /// Posts CPU-initiated puts with signals over rails, like `put_signal` of a kernel. The first proxy posts them. The
    /// call returns after all puts are complete.
    ///
    /// # Errors
    /// Returns [`GinError::Usage`] if no PE is reached over rails, and otherwise the proxy's error.
    pub fn put_signals<T: Plain>(&self, puts: &[HostPut<T>]) -> Result<(), GinError> {
        let none = || GinError::Usage("there is no proxy that could put for the CPU".into());
        let proxy = self.group.as_ref().and_then(|group| group.proxies().first()).ok_or_else(none)?;
        let command = |&HostPut { to, from, signal, peer }: &HostPut<T>| {
            let put = Command::put((HEAP, from.offset()), (HEAP, to.offset()), from.bytes(), peer);
            signal.map_or(put, |signal| put.with_signal(signal_immediate(signal.0, 1)))
        };
        Ok(proxy.put(puts.iter().map(command).collect()).map_err(|error| self.named(error))?)
    }
}
