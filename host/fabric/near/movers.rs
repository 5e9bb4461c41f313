//! Threads that copy: the engines of the modelled cards. A large write is cut into chunks, and a chunk of the destination
//! always goes to the same thread, in whose cache it still is when its slot is written again.

use crate::memory_file::MemoryFile;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that one thread copies in a piece.
const CHUNK: u64 = 128 << 10;
/// How long a thread looks for more before it sleeps: to wake it costs as much as some chunks.
const AWAKE: Duration = Duration::from_millis(1);

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

/// The threads. Dropped, they end, after what they have been given.
pub struct Movers {
    /// To each thread. Only to wake one that sleeps takes a system call.
    lanes: Vec<Sender<Chunk>>,
    threads: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Movers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} copying threads", self.lanes.len())
    }
}

impl Movers {
    /// Starts so many threads, at least one.
    ///
    /// # Errors
    /// The system's.
    pub fn start(threads: usize) -> io::Result<Movers> {
        let mut movers = Movers { lanes: Vec::new(), threads: Vec::new() };
        for number in 0..threads.max(1) {
            let (lane, chunks) = mpsc::channel();
            let thread = std::thread::Builder::new().name(format!("mover {number}")).spawn(move || serve(&chunks))?;
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
            // Its thread is there for as long as this is.
            let _ = lane.send(Chunk {
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

/// A thread's work: until there is none any more and nobody is left to give it some.
fn serve(chunks: &Receiver<Chunk>) {
    let mut since = Instant::now();
    loop {
        let chunk = match chunks.try_recv() {
            Err(TryRecvError::Empty) if since.elapsed() < AWAKE => {
                std::hint::spin_loop();
                continue;
            }
            Err(TryRecvError::Empty) => chunks.recv().ok(),
            given => given.ok(),
        };
        let Some(Chunk { source, target, bytes, job, _memory }) = chunk else { return };
        // SAFETY: the contract of `copy`; the two are different memory, or a put onto itself, which is undefined on a card too
        // and stays within both.
        unsafe { std::ptr::copy(source, target, bytes) };
        job.0.fetch_sub(1, Ordering::Release);
        since = Instant::now();
    }
}

impl Drop for Movers {
    fn drop(&mut self) {
        // The threads take what was sent, and then hear that there are no senders.
        self.lanes.clear();
        for thread in self.threads.drain(..) {
            // It copies and nothing else: it cannot have panicked.
            let _ = thread.join();
        }
    }
}
