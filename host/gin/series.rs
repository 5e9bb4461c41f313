//! Series of kernels: launched into streams one behind another, without the CPU waiting for each; and transfers that the CPU begins.

use super::life::Life;
use super::{GinError, Plain, Signal, Sym, World};
use ginlab_base::giving_way::GivingWay;
use ginlab_bootstrap::Bootstrap;
use ginlab_cuda::{Event, Stream};
use ginlab_proxy::ProxyGroup;
use kernels::command::{Command, Opcode, signal_immediate};
use kernels::gin::HEAP;
use kernels::ring::Status;
use std::time::{Duration, Instant};

/// How often a wait looks for what has gone.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Looks at what is waited for between two looks at the clock.
const LOOKS: u32 = 256;
/// The longest sleep between two looks, where threads share cores.
const REST: Duration = Duration::from_millis(1);

/// A put that the CPU begins.
#[derive(Clone, Copy, Debug)]
pub struct HostPut<T> {
    /// Where it goes, on the other PE.
    pub to: Sym<T>,
    /// What is sent, of this PE's heap; not longer than where it goes.
    pub from: Sym<T>,
    /// What is raised there by one behind it.
    pub signal: Option<Signal>,
    /// The other PE.
    pub peer: u32,
}

impl World {
    /// Waits, awake where threads have cores of their own, until `done` says so: an event of a stream, a word that a kernel writes. Looks meanwhile for failures of
    /// the series' kernels, for peers and proxies that have gone, and for Ctrl-C, which end the kernels' waits.
    ///
    /// # Errors
    /// As [`launch`](World::launch); [`GinError::Call`] with `what` when it does not end, and no signal of this PE and no ring has changed
    /// for twice the world's timeout (four times where busy threads share cores).
    pub fn wait_for(
        &self,
        ranks: &mut Bootstrap,
        what: &'static str,
        mut done: impl FnMut() -> Result<bool, GinError>,
    ) -> Result<(), GinError> {
        let mut life = Life::new();
        let (mut looked, mut looks, mut giving) = (Instant::now(), 0u32, GivingWay::every(1).resting_up_to(REST));
        while !done()? {
            looks = looks.wrapping_add(1);
            if self.shares_core {
                giving.in_vain();
            } else if !looks.is_multiple_of(LOOKS) {
                std::hint::spin_loop();
                continue;
            }
            if looked.elapsed() < LOOK_EVERY {
                continue;
            }
            looked = Instant::now();
            self.look_around(ranks)?;
            self.reported(what)?;
            self.check_life(&mut life, what)?;
        }
        Ok(())
    }

    /// As [`wait_for`](World::wait_for), for the end of what a stream has been given so far; then the series' first failure, if there was
    /// one.
    ///
    /// # Errors
    /// As [`wait_for`](World::wait_for).
    pub fn wait_for_stream(
        &self,
        ranks: &mut Bootstrap,
        what: &'static str,
        stream: &Stream,
    ) -> Result<Event, GinError> {
        let event = stream.event()?;
        self.wait_for(ranks, what, || Ok(event.is_complete()?))?;
        self.reported(what)?;
        Ok(event)
    }

    /// Ends the kernels' waits when a peer or a proxy has gone, or at Ctrl-C: whoever waits for a signal does not look at its ring.
    pub(super) fn look_around(&self, ranks: &mut Bootstrap) -> Result<(), GinError> {
        let reason = if ginlab_base::signals::interrupted() {
            Err(GinError::Interrupted)
        } else {
            ranks.check_peers().map_err(GinError::from)
        };
        if reason.is_err() {
            self.abort.write(0, &[Status::ENDED.0])?;
            self.group.iter().for_each(ProxyGroup::stop);
        } else if self.group.as_ref().is_some_and(|group| group.failures().next().is_some()) {
            // The kernel says which call met it.
            self.abort.write(0, &[Status::STOPPED.0])?;
        }
        reason
    }

    /// Whether this PE's heap is mapped here: this PE's, or over NVLink; otherwise it is reached by rails.
    pub fn is_mapped(&self, pe: u32) -> bool {
        pe == self.my_pe() || matches!(self.opened.get(pe as usize), Some(Some(_)))
    }

    /// Where an object of a PE lies for copies of this device; nothing where the PE is reached by rails.
    pub fn address_of<T: Plain>(&self, object: Sym<T>, pe: u32) -> Option<u64> {
        self.heap_at(pe).map(|heap| heap + object.offset())
    }

    /// As [`address_of`](World::address_of), of a signal's word that mapped PEs add to. Who stores there replaces what these have added.
    pub fn address_of_signal(&self, signal: Signal, pe: u32) -> Option<u64> {
        self.heap_at(pe).map(|heap| heap + u64::from(signal.0) * 8)
    }

    fn heap_at(&self, pe: u32) -> Option<u64> {
        if pe == self.my_pe() {
            return Some(self.heap.address());
        }
        self.opened.get(pe as usize)?.as_ref().map(ginlab_cuda::OpenedMemory::address)
    }

    /// A CPU-initiated put with a signal over rails, as `put_signal` of a kernel: the first proxy posts it; returns when it is done.
    ///
    /// # Errors
    /// [`GinError::Usage`] where no PE is reached by rails; the proxy's.
    pub fn put_signals<T: Plain>(&self, puts: &[HostPut<T>]) -> Result<(), GinError> {
        let none = || GinError::Usage("no proxy is here that could put for the CPU".into());
        let proxy = self.group.as_ref().and_then(|group| group.proxies().first()).ok_or_else(none)?;
        let command = |&HostPut { to, from, signal, peer }: &HostPut<T>| Command {
            opcode: if signal.is_some() { Opcode::PutSignal } else { Opcode::Put },
            source_region: HEAP,
            source_offset: from.offset(),
            destination_region: HEAP,
            destination_offset: to.offset(),
            bytes: from.bytes(),
            peer,
            immediate: signal.map_or(0, |signal| signal_immediate(signal.0, 1)),
        };
        Ok(proxy.put(puts.iter().map(command).collect())?)
    }
}
