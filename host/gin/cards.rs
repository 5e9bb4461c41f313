//! Path `direct`: the PEs' queue pairs, which kernels drive themselves, and the thread that counts signals.
//!
//! A block's commands go to a queue pair of this PE's card; the peer's pair of the same number is where they arrive. Registration, address
//! handles and their exchange stay with the CPU. What arrives is counted by one thread, which reads the receive sides' completion queues and adds
//! what immediates say to the signals, as a proxy does, and posts nothing; or by the kernels that wait (rule `kernel`).
//!
//! Nothing holds a sender back that is ahead of that thread: a completion queue that it has not read for a whole lap loses signals, and the kernel
//! that waits for them ends by its deadline. With [`ARRIVALS`] entries a pair that takes as many signals from all PEs within one delay of the thread.

use super::GinError;
use super::heap::for_rails;
use cuda_std::memory::{Word, load_acquire_host_u64};
use efa_queue::{Completion, completion, rules};
use ginlab_base::giving_way::GivingWay;
use ginlab_bootstrap::Bootstrap;
use ginlab_cuda::{Buffer, Device, Place};
use ginlab_direct::{ChannelOptions, Channels};
use ginlab_fabric::verbs::{Completions, Verbs};
use ginlab_proxy::Cores;
use ginlab_proxy::signal_order::SignalWords;
use ginlab_topology::cores;
use kernels::command::signal_of;
use kernels::gin::{Arrivals, Count, Inlet};
use kernels::ring::Ring;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Requests of a pair that are under way at most.
const DEPTH: u32 = 1024;
/// Signals that have arrived at a pair and are not counted yet, at most.
const ARRIVALS: u32 = 1 << 15;
/// Signals that the card counts, by rule `counter`: each is a queue pair and a counter of each PE's card, of which there are some hundred.
const COUNTED: u32 = 16;
/// Looks in vain before the thread gives way, where others share its core.
const VAIN_LOOKS: u32 = 1 << 6;

/// Bytes behind a heap that values are sent from, for so many queues.
pub(super) fn staging_bytes(queues: usize) -> u64 {
    ginlab_direct::staging_bytes(queues, DEPTH)
}

/// What is needed to open them.
pub(super) struct Opening<'a> {
    pub device: &'a Device,
    /// The card's name.
    pub card: &'a str,
    /// In memory of the GPU or pinned memory of the host, with [`staging_bytes`] behind it.
    pub heap: &'a Buffer,
    /// Without these.
    pub heap_bytes: u64,
    /// Queue pairs.
    pub queues: usize,
    pub abort: &'a Buffer,
    pub timeout_ns: u64,
    pub cores: &'a Cores,
    /// Kernels read what arrives themselves; otherwise a thread does.
    pub by_kernel: bool,
    /// The card counts the first signals.
    pub counts: bool,
    /// The signals' words: in host memory for a thread, in device memory for kernels.
    pub signals: &'a Buffer,
}

/// Signals that have arrived at a PE's cards and that none of its kernels has read yet (rules `kernel` and `counter`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// By counters of the card: how often 1 was added, to each of the signals that it counts.
    pub counted: Vec<u64>,
    /// By immediates, in the order of their arrival: which signal, and what is added to it.
    pub immediates: Vec<(u32, u64)>,
    /// Immediates at the queue pairs of counted signals. Plain writes alone belong there, and no kernel looks: 0.
    pub misplaced: u64,
}

impl Unread {
    /// What both ways add to a signal.
    pub(super) fn of(&self, signal: u32) -> u64 {
        let counted = self.counted.get(signal as usize).copied().unwrap_or(0);
        counted + self.immediates.iter().filter(|(which, _)| *which == signal).map(|(_, add)| add).sum::<u64>()
    }
}

/// See the module. Fields are dropped in this order: nobody reads a queue that is gone.
#[derive(Debug)]
pub(super) struct Cards {
    counting: Option<Counting>,
    /// What kernels read instead: the description, and what it points to.
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
        // SAFETY: the world keeps the heap longer.
        let channels = unsafe { Channels::open(ranks, &options) }?;
        let core = opening.cores.cpus.first().copied();
        let queues: Vec<Completions> = channels.arrivals().collect();
        let (mut counting, mut arrivals) = (None, None);
        if opening.by_kernel {
            arrivals = Some(for_kernels(device, &queues, &channels, opening.signals)?);
        } else {
            // SAFETY: the world keeps the words longer than its cards.
            let words = unsafe { SignalWords::at(opening.signals.pointer()) };
            counting = Some(Counting::start(queues, words, core, opening.cores.shared)?);
        }
        Ok(Cards { counting, arrivals, channels, core })
    }

    /// As kernels get them.
    pub fn rings(&self) -> *const Ring {
        self.channels.rings()
    }

    pub fn count(&self) -> u32 {
        self.channels.count()
    }

    /// For [`kernels::gin::World::arrivals`].
    pub fn arrivals(&self) -> *const Arrivals {
        self.arrivals.as_ref().map_or(std::ptr::null(), |[table, ..]| table.pointer())
    }

    /// What has arrived and no kernel has read yet; nothing where a thread counts.
    pub fn unread(&self) -> Result<Unread, GinError> {
        let mut unread = Unread::default();
        let Some([_, _, words, _]) = &self.arrivals else { return Ok(unread) };
        for (signal, counter) in self.channels.counters().enumerate() {
            let mut read = [0u64];
            // Behind the arrivals of each channel, and the role.
            words.read((self.channels.count() as usize + 1 + signal) * 8, &mut read)?;
            // SAFETY: the card's word, which all parties use by atomic accesses; the pair outlives this.
            let now = load_acquire_host_u64(unsafe { &*counter.cast::<Word>() });
            unread.counted.push(now.wrapping_sub(read[0]) & rules::COUNTER_MASK);
        }
        for (number, queue) in self.channels.arrivals().enumerate() {
            let mut read = [0u64];
            words.read(number * 8, &mut read)?;
            let mut reader = Reader { queue, read: read[0] };
            while let Some(arrived) = reader.next() {
                unread.immediates.extend(arrived);
            }
        }
        for queue in self.channels.arrivals_of_counted() {
            let mut reader = Reader { queue, read: 0 };
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

    /// What went wrong first at each queue where something did.
    pub fn failures(&self) -> Result<Vec<String>, GinError> {
        Ok(self.channels.failures()?)
    }

    /// Changes when a kernel has rung.
    pub fn pulse(&self) -> Result<u64, GinError> {
        Ok(self.channels.pulse()?)
    }
}

/// What kernels need to read arrivals: their description, the inlets, what was read of each, the role, and behind it what was read of each
/// counter; the counters.
fn for_kernels(
    device: &Device,
    queues: &[Completions],
    channels: &Channels,
    signals: &Buffer,
) -> Result<[Buffer; 4], GinError> {
    let counters: Vec<*const Word> = channels.counters().map(<*const u64>::cast).collect();
    let words = device.allocate(Place::Device, (queues.len() + 1 + counters.len()) * 8)?;
    let inlet = |(number, queue): (usize, &Completions)| Inlet {
        completions: queue.slots.cast::<Word>(),
        read: words.pointer::<Word>().wrapping_add(number),
        entries: queue.entries,
        entry_words: queue.entry_bytes / 8,
    };
    let list: Vec<Inlet> = queues.iter().enumerate().map(inlet).collect();
    let inlets = device.allocate(Place::Device, size_of_val(&list[..]))?;
    inlets.write(0, &list)?;
    let table = device.allocate(Place::Device, size_of::<Arrivals>())?;
    let role = words.pointer::<Word>().wrapping_add(queues.len());
    let count = queues.len() as u64;
    let of_signal = |(signal, counter): (usize, &*const Word)| {
        // SAFETY: as in `unread`. Before any PE writes: what it begins with is no signal.
        let begins = load_acquire_host_u64(unsafe { &**counter });
        let place = queues.len() + 1 + signal;
        words.write(place * 8, &[begins & rules::COUNTER_MASK])?;
        Ok(Count { counter: *counter, read: words.pointer::<Word>().wrapping_add(place) })
    };
    let list = counters.iter().enumerate().map(of_signal).collect::<Result<Vec<Count>, GinError>>()?;
    let counts = device.allocate(Place::Device, size_of_val(&list[..]))?;
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

/// Where the thread stands in a queue.
struct Reader {
    queue: Completions,
    read: u64,
}

// SAFETY: memory that all parties use by atomic accesses; the pair outlives the thread.
unsafe impl Send for Reader {}

impl Reader {
    /// The next arrival's signal, whatever it is worth.
    fn next(&mut self) -> Option<Option<(u32, u64)>> {
        let words = (self.queue.entry_bytes / 8) as usize;
        let index = rules::slot(self.read, self.queue.entries) as usize * words;
        // SAFETY: so many entries of so many bytes, as the pair vouches for.
        let entry = unsafe { std::slice::from_raw_parts(self.queue.slots.cast::<Word>().add(index), words) };
        // Acquire: the card has stored the bytes of the write before.
        let first = load_acquire_host_u64(&entry[0]);
        if completion::phase(first) != rules::completion_phase(self.read, self.queue.entries) {
            return None;
        }
        self.read += 1;
        let second = load_acquire_host_u64(&entry[1]);
        Some(match Completion::decode(&[first, second]) {
            Some(Completion::Arrived(arrived)) if arrived.status == 0 => arrived.immediate.and_then(signal_of),
            _ => None,
        })
    }
}

impl Counting {
    fn start(
        queues: Vec<Completions>,
        words: SignalWords,
        core: Option<usize>,
        shared: bool,
    ) -> Result<Counting, GinError> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut readers: Vec<Reader> = queues.into_iter().map(|queue| Reader { queue, read: 0 }).collect();
        let stopped = stop.clone();
        let count = move || {
            if let Some(core) = core {
                // Where that is refused it runs anywhere.
                cores::pin(core);
            }
            let mut giving = GivingWay::every(VAIN_LOOKS);
            // Nothing is ordered by it: who raises it joins this thread.
            while !stopped.load(Ordering::Relaxed) {
                let mut moved = false;
                for reader in &mut readers {
                    while let Some(arrived) = reader.next() {
                        moved = true;
                        if let Some((signal, add)) = arrived {
                            words.add(signal, add);
                        }
                    }
                }
                if moved {
                    giving.moved();
                } else if shared {
                    giving.in_vain();
                }
            }
        };
        let thread = std::thread::Builder::new().name("signals".into()).spawn(count);
        let thread = thread.map_err(|error| GinError::Usage(format!("a thread that counts signals: {error}")))?;
        Ok(Counting { stop, thread: Some(thread) })
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // One that has panicked counts no more either.
            let _ = thread.join();
        }
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.end();
    }
}

/// What a header says of it.
pub(super) const NOTE: &str = "path direct: kernels write the card's requests and ring its doorbells themselves; one CPU thread reads what \
                               arrives and counts signals";
/// What a header says besides where cards count.
pub(super) fn note_of_counters() -> String {
    format!(
        "rule counter: what adds 1 to one of a PE's first {COUNTED} signals is counted by its card, and read by the kernel that waits; other signals are immediates"
    )
}

/// The same where kernels read what arrives.
pub(super) const NOTE_BY_KERNEL: &str = "path direct: kernels write the card's requests, ring its doorbells and read what arrives themselves; \
                                         no CPU thread counts signals";
