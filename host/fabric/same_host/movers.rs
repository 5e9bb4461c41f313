//! Copy threads: the engines of the modelled cards. A large write is split into chunks, and a chunk of the destination
//! is always copied by the same thread. The chunk is then still in that thread's cache when its slot is written again,
//! unless the stores bypass the cache ([`Stores`]).

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

/// Size of a chunk, in bytes.
const CHUNK: u64 = 128 << 10;
/// Time for which a thread polls for more chunks before it sleeps. Waking it takes as long as copying some chunks.
const AWAKE: Duration = Duration::from_millis(1);
/// Interval at which a sleeping thread checks whether it must exit.
const ASLEEP: Duration = Duration::from_millis(100);

/// Number of remaining chunks of one write.
#[derive(Debug)]
pub(super) struct Job(AtomicUsize);

impl Job {
    /// Returns whether all chunks are copied. Uses acquire order: the caller then observes the copied bytes.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

/// A range to copy.
struct Chunk {
    source: *const u8,
    target: *mut u8,
    bytes: usize,
    job: Arc<Job>,
    /// Keeps the target mapped.
    _memory: Arc<MemoryFile>,
}

// SAFETY: the caller of `CopyThreads::copy` keeps the addresses valid for any thread until the job is done.
unsafe impl Send for Chunk {}

/// Work queue of a thread.
struct Lane {
    chunks: Mutex<VecDeque<Chunk>>,
    /// Number of chunks, for checks without the lock.
    count: CachePadded<AtomicUsize>,
    end: AtomicBool,
    /// Handle that wakes the thread. Requires a system call only if the thread sleeps.
    thread: Unparker,
}

/// The copy threads. When dropped, they finish their chunks and exit.
pub struct CopyThreads {
    lanes: Vec<Arc<Lane>>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for CopyThreads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} copying threads", self.lanes.len())
    }
}

impl CopyThreads {
    /// Starts `threads` threads, at least one, which copy with `stores`.
    ///
    /// # Errors
    /// Returns the system's error if a thread cannot be started.
    pub fn start(threads: usize, stores: Stores) -> io::Result<CopyThreads> {
        let mut movers = CopyThreads { lanes: Vec::new(), threads: Vec::new() };
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

    /// Queues a copy. `at` is the offset in the destination, which selects the threads.
    ///
    /// # Safety
    /// Source and target must stay valid, and the source unchanged, until the job is done. `memory` keeps the target
    /// mapped.
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
                // SAFETY: the offset is below `bytes`, and therefore in the source.
                source: unsafe { source.add(offset as usize) },
                // SAFETY: the offset is below `bytes`, and therefore in the target.
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
                    // SAFETY: the caller of `copy` keeps both ranges valid. They are different memory, or the same in a
                    // put to itself, which stays within both ranges and is undefined on a real NIC as well.
                    unsafe { stores.copy(source, target, bytes) };
                    job.0.fetch_sub(1, Ordering::Release);
                }
                since = Instant::now();
            } else if self.end.load(Ordering::Acquire) {
                return;
            } else if since.elapsed() < AWAKE {
                std::hint::spin_loop();
            } else {
                // A push after the check above has left a token, with which this returns immediately.
                parker.park_timeout(ASLEEP);
            }
        }
    }
}

impl Drop for CopyThreads {
    fn drop(&mut self) {
        for lane in &self.lanes {
            lane.end.store(true, Ordering::Release);
            lane.thread.unpark();
        }
        for thread in self.threads.drain(..) {
            // Ignores the result: the thread only copies and does not panic.
            let _ = thread.join();
        }
    }
}
