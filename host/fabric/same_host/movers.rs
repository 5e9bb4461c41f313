//! Threads that copy: the engines of the modelled cards. A large write is cut into chunks, and a chunk of the destination
//! always goes to the same thread, in whose cache it still is when its slot is written again, unless it is stored past it ([`Stores`]).

use super::Stores;
use crossbeam_utils::CachePadded;
use crossbeam_utils::sync::{Parker, Unparker};
use ginlab_base::memory_file::MemoryFile;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that one thread copies in a piece.
const CHUNK: u64 = 128 << 10;
/// How long a thread looks for more before it sleeps: to wake it costs as much as some chunks.
const AWAKE: Duration = Duration::from_millis(1);
/// A sleeping thread looks whether it is to end.
const ASLEEP: Duration = Duration::from_millis(100);

/// What is left of one write.
#[derive(Debug)]
pub(super) struct Job(AtomicUsize);

impl Job {
    /// Whether all is copied; what reads it after this finds the bytes there.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

/// Bytes to copy.
struct Chunk {
    source: *const u8,
    target: *mut u8,
    bytes: usize,
    job: Arc<Job>,
    /// Keeps the target mapped.
    _memory: Arc<MemoryFile>,
}

// SAFETY: the addresses are valid for any thread until the job is done (contract of `Movers::copy`).
unsafe impl Send for Chunk {}

/// A thread's work.
struct Lane {
    chunks: Mutex<VecDeque<Chunk>>,
    /// How many there are, to look at without the lock.
    count: CachePadded<AtomicUsize>,
    end: AtomicBool,
    /// Wakes the thread, if it sleeps: only that takes a system call.
    thread: Unparker,
}

/// The threads. Dropped, they end, after what they have been given.
pub struct Movers {
    lanes: Vec<Arc<Lane>>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Movers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} copying threads", self.lanes.len())
    }
}

impl Movers {
    /// Starts so many threads, at least one, which store so.
    ///
    /// # Errors
    /// The system's.
    pub fn start(threads: usize, stores: Stores) -> io::Result<Movers> {
        let mut movers = Movers { lanes: Vec::new(), threads: Vec::new() };
        for number in 0..threads.max(1) {
            let parker = Parker::new();
            let lane = Arc::new(Lane {
                chunks: Mutex::default(),
                count: CachePadded::default(),
                end: AtomicBool::new(false),
                thread: parker.unparker().clone(),
            });
            let of_thread = lane.clone();
            let thread = std::thread::Builder::new()
                .name(format!("mover {number}"))
                .spawn(move || of_thread.serve(&parker, stores))?;
            movers.lanes.push(lane);
            movers.threads.push(thread);
        }
        Ok(movers)
    }

    /// Copies, soon. `at` is the place in the destination.
    ///
    /// # Safety
    /// Source and target stay valid, and the source unchanged, until the job is done; `memory` keeps the target.
    pub(super) unsafe fn copy(
        &self,
        source: *const u8,
        target: *mut u8,
        bytes: u64,
        at: u64,
        memory: &Arc<MemoryFile>,
    ) -> Arc<Job> {
        let chunks = bytes.div_ceil(CHUNK);
        let job = Arc::new(Job(AtomicUsize::new(chunks as usize)));
        for chunk in 0..chunks {
            let offset = chunk * CHUNK;
            let lane = &self.lanes[((at / CHUNK + chunk) % self.lanes.len() as u64) as usize];
            lane.push(Chunk {
                // SAFETY: inside the source and the target.
                source: unsafe { source.add(offset as usize) },
                // SAFETY: as above.
                target: unsafe { target.add(offset as usize) },
                bytes: CHUNK.min(bytes - offset) as usize,
                job: job.clone(),
                _memory: memory.clone(),
            });
        }
        job
    }
}

impl Lane {
    fn push(&self, chunk: Chunk) {
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        chunks.push_back(chunk);
        self.count.store(chunks.len(), Ordering::Release);
        drop(chunks);
        self.thread.unpark();
    }

    fn serve(&self, parker: &Parker, stores: Stores) {
        let mut since = Instant::now();
        loop {
            if self.count.load(Ordering::Acquire) > 0 {
                let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
                let chunk = chunks.pop_front();
                self.count.store(chunks.len(), Ordering::Release);
                drop(chunks);
                if let Some(Chunk { source, target, bytes, job, .. }) = chunk {
                    // SAFETY: the contract of `copy`; the two are different memory, or a put onto itself, which is undefined
                    // on a card too and stays within both.
                    unsafe { stores.copy(source, target, bytes) };
                    job.0.fetch_sub(1, Ordering::Release);
                }
                since = Instant::now();
            } else if self.end.load(Ordering::Acquire) {
                return;
            } else if since.elapsed() < AWAKE {
                std::hint::spin_loop();
            } else {
                // What was pushed since the look above has left a token, with which this returns at once.
                parker.park_timeout(ASLEEP);
            }
        }
    }
}

impl Drop for Movers {
    fn drop(&mut self) {
        for lane in &self.lanes {
            lane.end.store(true, Ordering::Release);
            lane.thread.unpark();
        }
        for thread in self.threads.drain(..) {
            // It copies and nothing else: it cannot have panicked.
            let _ = thread.join();
        }
    }
}
