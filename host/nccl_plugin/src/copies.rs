//! Copies to and from GPU memory, which the rails cannot access. They go through pinned host memory, and are made by
//! the GPU's copy engines or a ginlab kernel.
//!
//! Copies use the plugin's own streams, which do not synchronize with the legacy stream: a kernel in that stream may be
//! waiting for these very bytes. The ginlab kernel ([`crate::mover`]) is optional: if NCCL's kernels fill the GPU, it
//! never starts.

/// Two queues of copies: into GPU memory and out of it. This is a trait, so that tests need no GPU.
pub trait Copies {
    /// Binds the copies to the calling thread. Must be called by the thread that makes the other calls, before them.
    fn bind(&mut self) -> Result<(), String>;

    /// Pins host memory, so that the copy engines can access it directly.
    ///
    /// # Safety
    /// The memory must stay valid until [`unpin`](Copies::unpin).
    unsafe fn pin(&mut self, address: u64, bytes: usize) -> Result<(), String>;

    /// Unpins memory.
    fn unpin(&mut self, address: u64);

    /// Starts a copy into GPU memory, ordered after those started before.
    ///
    /// # Safety
    /// Both ranges must be valid, and the host range must not change, until a later mark is passed.
    unsafe fn put_in(&mut self, device: u64, host: u64, bytes: usize) -> Result<(), String>;

    /// Starts a write of an 8-byte word into GPU memory, ordered after the copies started before. `scratch` is a word
    /// of pinned memory for this write.
    ///
    /// # Safety
    /// Same requirements as [`put_in`](Copies::put_in). Both addresses must be multiples of 8.
    unsafe fn put_word(&mut self, device: u64, scratch: *mut u64, value: u64) -> Result<(), String> {
        // SAFETY: the caller guarantees that both words are valid until a later mark is passed.
        unsafe {
            scratch.write(value);
            self.put_in(device, scratch as u64, 8)
        }
    }

    /// Like [`put_word`](Copies::put_word), for a counter that is not ordered after the preceding copies: a thread that
    /// acquires it need not observe them.
    ///
    /// # Safety
    /// Same requirements as [`put_word`](Copies::put_word).
    unsafe fn put_count(&mut self, device: u64, scratch: *mut u64, value: u64) -> Result<(), String> {
        // SAFETY: the contract is that of `put_word`, which the caller upholds.
        unsafe { self.put_word(device, scratch, value) }
    }

    /// Starts a copy out of GPU memory. If `after_puts` is set, the copy is ordered after [`put_in`](Copies::put_in);
    /// otherwise it uses the other queue.
    ///
    /// # Safety
    /// Both ranges must be valid, and the host range must not be accessed, until a later mark is passed.
    unsafe fn take_out(&mut self, host: u64, device: u64, bytes: usize, after_puts: bool) -> Result<(), String>;

    /// Inserts a mark after all copies in `queue` so far. Returns its number; marks are numbered from 1.
    fn mark(&mut self, queue: CopyDirection) -> Result<u64, String>;

    /// Returns the last passed mark of `queue`, or 0. A mark is passed when all copies before it are complete.
    fn passed(&mut self, queue: CopyDirection) -> Result<u64, String>;

    /// Makes progress. Must be called repeatedly, even without requests.
    fn turn(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Waits until all started copies are complete. Each copy is short, and waits for no kernel.
    fn settle(&mut self);

    /// Returns a description for people.
    fn name(&self) -> String;

    /// Returns a description of the work in progress, for messages; `None` if [`name`](Copies::name) suffices.
    fn state(&self) -> Option<String> {
        None
    }
}

/// Direction of a queue. Its number is the lane of the kernel that serves the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// Into GPU memory.
    In,
    /// Out of GPU memory.
    Out,
}

/// Copies of a process without a GPU: all fail.
#[derive(Debug)]
pub struct NoCopies;

impl Copies for NoCopies {
    fn bind(&mut self) -> Result<(), String> {
        Ok(())
    }

    unsafe fn pin(&mut self, _address: u64, _bytes: usize) -> Result<(), String> {
        Ok(())
    }

    fn unpin(&mut self, _address: u64) {}

    unsafe fn put_in(&mut self, _device: u64, _host: u64, _bytes: usize) -> Result<(), String> {
        Err("no GPU in this process".into())
    }

    unsafe fn take_out(&mut self, _host: u64, _device: u64, _bytes: usize, _after_puts: bool) -> Result<(), String> {
        Err("no GPU in this process".into())
    }

    fn mark(&mut self, _queue: CopyDirection) -> Result<u64, String> {
        Ok(0)
    }

    fn passed(&mut self, _queue: CopyDirection) -> Result<u64, String> {
        Ok(0)
    }

    fn settle(&mut self) {}

    fn name(&self) -> String {
        "host memory only".into()
    }
}
