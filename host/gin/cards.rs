//! Path `direct`: the PEs' queue pairs, which kernels drive without a proxy, and the thread that counts signals.
//!
//! A block's commands are posted to one of the queue pairs of this PE's NIC. They arrive at the peer's pair with the
//! same number. The CPU registers memory, creates address handles and exchanges them. One thread counts arrivals. Like
//! a proxy, it reads the completion queues of the receive sides and adds the values in the immediates to the signals,
//! but it posts nothing. With rule `kernel`, the waiting kernels count instead.
//!
//! A sender and that thread use no flow control. A completion queue that the thread has not read for a whole lap loses
//! signals, and the kernel that waits for them fails at its deadline. With [`ARRIVALS`] entries, a pair accepts that
//! many signals from all PEs while the thread is delayed.

use super::GinError;
use super::heap::for_rails;
use crate::direct::{ChannelOptions, Channels};
use cuda_std::memory::{Word, load_acquire_host_u64};
use efa_queue::{DecodedCompletion, rules};
use ginlab_base::backoff::Backoff;
use ginlab_base::limits::explain;
use ginlab_bootstrap::Bootstrap;
use ginlab_cuda::{Buffer, Device, MemoryLocation};
use ginlab_fabric::verbs::{CompletionReader, CompletionRing, Verbs};
use ginlab_proxy::Cores;
use ginlab_proxy::signal_order::SignalWords;
use ginlab_topology::cores;
use kernels::command::signal_of;
use kernels::gin::{Arrivals, CountedSignal, ReceiveQueue};
use kernels::outlet::Outlets;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Maximum number of requests in flight on a queue pair.
const DEPTH: u32 = 1024;
/// Maximum number of signals that have arrived at a queue pair and are not yet counted.
const ARRIVALS: u32 = 1 << 15;
/// Number of signals that the NIC counts with rule `counter`. Each needs a queue pair and a counter on each PE's NIC,
/// which has a few hundred counters.
const COUNTED: u32 = 16;
/// Number of unsuccessful polls after which the thread yields, if it shares its core.
const VAIN_LOOKS: u32 = 1 << 6;

/// Returns the number of bytes after a heap from which `queues` queues can send values.
pub(super) fn staging_bytes(queues: usize) -> u64 {
    crate::direct::staging_bytes(queues, DEPTH)
}

/// Options for opening [`Cards`].
pub(super) struct Opening<'a> {
    pub device: &'a Device,
    pub card: &'a str,
    /// Heap in GPU memory or pinned host memory, followed by [`staging_bytes`].
    pub heap: &'a Buffer,
    /// Size of the heap in bytes, without the staging area.
    pub heap_bytes: u64,
    /// Number of queue pairs.
    pub queues: usize,
    pub abort: &'a Buffer,
    pub timeout_ns: u64,
    pub cores: &'a Cores,
    /// Whether kernels read arrivals themselves. Otherwise, a thread does.
    pub by_kernel: bool,
    /// Whether the NIC counts the first [`COUNTED`] signals.
    pub counts: bool,
    /// Memory words of the signals: in host memory for a thread, in device memory for kernels.
    pub signals: &'a Buffer,
}

/// Signals that have arrived at a PE's NIC and that none of its kernels has read (rules `kernel` and `counter`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// Number of unread increments by 1 of each signal that the NIC counts.
    pub counted: Vec<u64>,
    /// Signal and addend of each unread immediate, in order of arrival.
    pub immediates: Vec<(u32, u64)>,
    /// Number of immediates at the queue pairs of counted signals. Must be 0, because these pairs accept only plain
    /// writes and no kernel polls them.
    pub misplaced: u64,
}

impl Unread {
    /// Returns the sum of the unread increments of a signal, of both kinds.
    pub(super) fn of(&self, signal: u32) -> u64 {
        let counted = self.counted.get(signal as usize).copied().unwrap_or(0);
        counted + self.immediates.iter().filter(|(which, _)| *which == signal).map(|(_, add)| add).sum::<u64>()
    }
}

/// Queue pairs of a PE, and the reader of arrivals. Fields are dropped in this order: readers before the queues that
/// they read.
#[derive(Debug)]
pub(super) struct Cards {
    counting: Option<Counting>,
    /// Tables for kernels that read arrivals: the description, and the memory to which it points.
    arrivals: Option<[Buffer; 4]>,
    channels: Channels,
    core: Option<usize>,
}

impl Cards {
    pub fn open(ranks: &mut Bootstrap, opening: Opening<'_>) -> Result<Cards, GinError> {
        let Opening { device, heap, .. } = opening;
        let options = ChannelOptions {
            device,
            cards: &vec![opening.card; opening.queues],
            memory: for_rails(heap),
            heap_bytes: opening.heap_bytes,
            depth: DEPTH,
            arrivals: ARRIVALS,
            counted_signals: if opening.counts { COUNTED } else { 0 },
            abort: opening.abort,
            timeout_ns: opening.timeout_ns,
        };
        // SAFETY: the world keeps the heap for longer than the channels.
        let channels = unsafe { Channels::open(ranks, &options) }?;
        let core = opening.cores.cpus.first().copied();
        let queues: Vec<CompletionRing> = channels.arrivals().collect();
        let (mut counting, mut arrivals) = (None, None);
        if opening.by_kernel {
            arrivals = Some(for_kernels(device, &queues, &channels, opening.signals)?);
        } else {
            // SAFETY: the world keeps the words for longer than its `Cards`.
            let words = unsafe { SignalWords::at(opening.signals.pointer()) };
            counting = Some(Counting::start(queues, words, core, opening.cores.shared)?);
        }
        Ok(Cards { counting, arrivals, channels, core })
    }

    /// Returns the channels as kernel arguments.
    pub fn outlets(&self) -> Outlets {
        // SAFETY: the table was allocated, so it is not null.
        unsafe { Outlets::of_channels(self.channels.table(), self.channels.count()) }
    }

    /// Returns the value of [`kernels::gin::WorldView::arrivals`]; null if a thread reads arrivals.
    pub fn arrivals(&self) -> *const Arrivals {
        self.arrivals.as_ref().map_or(std::ptr::null(), |[table, ..]| table.pointer())
    }

    /// Returns the arrivals that no kernel has read; empty if a thread counts signals.
    pub fn unread(&self) -> Result<Unread, GinError> {
        let mut unread = Unread::default();
        let Some([_, _, words, _]) = &self.arrivals else { return Ok(unread) };
        for (signal, counter) in self.channels.counters().enumerate() {
            let mut read = [0u64];
            // Layout of `words`: one word per channel, the role, then one word per counter.
            words.read((self.channels.count() as usize + 1 + signal) * 8, &mut read)?;
            // SAFETY: the pair outlives this call. The NIC and all other parties access the word only atomically.
            let now = load_acquire_host_u64(unsafe { &*counter.cast::<Word>() });
            unread.counted.push(now.wrapping_sub(read[0]) & rules::COUNTER_MASK);
        }
        for (number, queue) in self.channels.arrivals().enumerate() {
            let mut read = [0u64];
            words.read(number * 8, &mut read)?;
            // SAFETY: `self` holds the queue pairs.
            let mut reader = unsafe { CompletionReader::new(queue, read[0]) };
            while let Some(arrived) = next_arrival(&mut reader) {
                unread.immediates.extend(arrived);
            }
        }
        for queue in self.channels.arrivals_of_counted() {
            // SAFETY: `self` holds the queue pairs.
            let mut reader = unsafe { CompletionReader::new(queue, 0) };
            while reader.next().is_some() {
                unread.misplaced += 1;
            }
        }
        Ok(unread)
    }

    pub fn affinity(&self) -> String {
        if self.counting.is_none() {
            return "signals are read by kernels".into();
        }
        let core = self.core.map_or_else(|| "not pinned".into(), |core| format!("core {core}"));
        format!("signals are counted on: {core}")
    }

    pub fn name(&self) -> String {
        self.channels.card().map(Verbs::name).unwrap_or_default().to_owned()
    }

    pub fn line_rate(&self) -> Option<u64> {
        self.channels.card().and_then(Verbs::link_bits_per_second)
    }

    /// Returns the first error of each queue that has failed.
    pub fn failures(&self) -> Result<Vec<String>, GinError> {
        Ok(self.channels.failures()?)
    }

    /// Returns a hash that changes when a kernel rings a doorbell.
    pub fn pulse(&self) -> Result<u64, GinError> {
        Ok(self.channels.pulse()?)
    }
}

/// Creates the tables that kernels need to read arrivals. Returns four buffers: the description, the inlets, the memory
/// words, and the table of counters. The words are the number of entries read per inlet, the role, and the last value
/// read from each counter.
fn for_kernels(
    device: &Device,
    queues: &[CompletionRing],
    channels: &Channels,
    signals: &Buffer,
) -> Result<[Buffer; 4], GinError> {
    let counters: Vec<*const Word> = channels.counters().map(<*const u64>::cast).collect();
    let words = device.allocate(MemoryLocation::Device, (queues.len() + 1 + counters.len()) * 8)?;
    let inlet = |(number, queue): (usize, &CompletionRing)| ReceiveQueue {
        completions: queue.slots.cast::<Word>(),
        read: words.pointer::<Word>().wrapping_add(number),
        entries: queue.entries,
        entry_words: queue.entry_bytes / 8,
    };
    let list: Vec<ReceiveQueue> = queues.iter().enumerate().map(inlet).collect();
    let inlets = device.allocate(MemoryLocation::Device, size_of_val(&list[..]))?;
    inlets.write(0, &list)?;
    let table = device.allocate(MemoryLocation::Device, size_of::<Arrivals>())?;
    let role = words.pointer::<Word>().wrapping_add(queues.len());
    let count = queues.len() as u64;
    let of_signal = |(signal, counter): (usize, &*const Word)| {
        // SAFETY: as in `unread`, the pair outlives the call and all accesses are atomic. No PE writes yet, so the
        // initial value of the counter includes no signals.
        let begins = load_acquire_host_u64(unsafe { &**counter });
        let place = queues.len() + 1 + signal;
        words.write(place * 8, &[begins & rules::COUNTER_MASK])?;
        Ok(CountedSignal { counter: *counter, read: words.pointer::<Word>().wrapping_add(place) })
    };
    let list = counters.iter().enumerate().map(of_signal).collect::<Result<Vec<CountedSignal>, GinError>>()?;
    let counts = device.allocate(MemoryLocation::Device, size_of_val(&list[..]))?;
    counts.write(0, &list)?;
    let described = Arrivals {
        inlets: inlets.pointer(),
        count,
        role,
        signals: signals.pointer(),
        counts: counts.pointer(),
        counted: list.len() as u64,
    };
    table.write(0, &[described])?;
    Ok([table, inlets, words, counts])
}

/// The thread that counts signals.
#[derive(Debug)]
struct Counting {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Returns the next arrival, if any, as its signal and addend. The inner value is `None` if the arrival failed or
/// carries no signal.
fn next_arrival(reader: &mut CompletionReader) -> Option<Option<(u32, u64)>> {
    Some(match DecodedCompletion::decode(&reader.next()?) {
        Some(DecodedCompletion::Arrived(arrived)) if arrived.status == 0 => arrived.immediate.and_then(signal_of),
        _ => None,
    })
}

impl Counting {
    fn start(
        queues: Vec<CompletionRing>,
        words: SignalWords,
        core: Option<usize>,
        shared: bool,
    ) -> Result<Counting, GinError> {
        let stop = Arc::new(AtomicBool::new(false));
        // SAFETY: the queue pairs outlive the thread, which is joined before they are dropped.
        let reader = |queue| unsafe { CompletionReader::new(queue, 0) };
        let mut readers: Vec<CompletionReader> = queues.into_iter().map(reader).collect();
        let stopped = stop.clone();
        let count = move || {
            if let Some(core) = core {
                // If pinning is refused, the thread runs on any core.
                cores::pin(core);
            }
            let mut backoff = Backoff::every(VAIN_LOOKS);
            // Relaxed suffices, because the flag orders nothing. The thread that sets it joins this thread.
            while !stopped.load(Ordering::Relaxed) {
                let mut moved = false;
                for reader in &mut readers {
                    while let Some(arrived) = next_arrival(reader) {
                        moved = true;
                        if let Some((signal, add)) = arrived {
                            words.add(signal, add);
                        }
                    }
                }
                if moved {
                    backoff.reset();
                } else if shared {
                    backoff.idle();
                }
            }
        };
        let thread = std::thread::Builder::new().name("signals".into()).spawn(count);
        let thread = thread.map_err(|error| {
            GinError::Usage(format!("cannot start a thread that counts signals: {}", explain(&error)))
        })?;
        Ok(Counting { stop, thread: Some(thread) })
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has also stopped counting.
            let _ = thread.join();
        }
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.end();
    }
}

/// Note for headers, if a thread counts signals.
pub(super) const NOTE: &str = "path direct: kernels write the requests of the EFA device and ring its doorbells; one \
                               CPU thread reads arrivals and counts signals";
/// Additional note for headers, if NICs count signals.
pub(super) fn note_of_counters() -> String {
    format!(
        "rule counter: puts that add 1 to one of a PE's first {COUNTED} signals are counted by its EFA device, whose \
         counter the waiting kernel reads; other signals are immediates"
    )
}

/// Note for headers, if kernels read arrivals.
pub(super) const NOTE_BY_KERNEL: &str = "path direct: kernels write the requests of the EFA device, ring its doorbells \
                                         and read arrivals; no CPU thread counts signals";
