//! Copies to and from memory of a GPU, which the rails do not reach: through pinned host memory, by the GPU's copy engines or a kernel of ours.
//!
//! On streams of our own that do not wait for the legacy stream: a kernel that waits for these very bytes may be in that one. A kernel of ours
//! ([`crate::mover`]) is not relied on: where NCCL's kernels fill the GPU it would never begin.

/// Two queues: into the GPU's memory, and out of it. A trait, so that tests need no GPU.
pub trait Copies {
    /// To be called by the thread that makes the calls, before others.
    fn bind(&mut self) -> Result<(), String>;

    /// Pins host memory, so that copies of it are the copy engine's alone.
    ///
    /// # Safety
    /// It stays valid until [`unpin`](Copies::unpin).
    unsafe fn pin(&mut self, address: u64, bytes: usize) -> Result<(), String>;

    /// Gives it back.
    fn unpin(&mut self, address: u64);

    /// Starts a copy into the GPU's memory, behind those started before.
    ///
    /// # Safety
    /// Both stretches are valid, and the host's stays as it is, until a mark behind it is passed.
    unsafe fn put_in(&mut self, device: u64, host: u64, bytes: usize) -> Result<(), String>;

    /// Starts the write of a word of 8 bytes into the GPU's memory, behind the copies started before; `scratch` is a word of pinned memory for it.
    ///
    /// # Safety
    /// As [`put_in`](Copies::put_in); both addresses are multiples of 8.
    unsafe fn put_word(&mut self, device: u64, scratch: *mut u64, value: u64) -> Result<(), String> {
        // SAFETY: the caller's contract.
        unsafe {
            scratch.write(value);
            self.put_in(device, scratch as u64, 8)
        }
    }

    /// As [`put_word`](Copies::put_word), of a number that counts what needs no order here: who acquires it need not see the copies before it.
    ///
    /// # Safety
    /// As there.
    unsafe fn put_count(&mut self, device: u64, scratch: *mut u64, value: u64) -> Result<(), String> {
        // SAFETY: the caller's contract.
        unsafe { self.put_word(device, scratch, value) }
    }

    /// Starts a copy out of the GPU's memory; `behind_puts`: in the order of [`put_in`](Copies::put_in), otherwise in a queue of its own.
    ///
    /// # Safety
    /// Both stretches are valid, and the host's is not touched, until a mark behind it is passed.
    unsafe fn take_out(&mut self, host: u64, device: u64, bytes: usize, behind_puts: bool) -> Result<(), String>;

    /// A mark behind all copies of the queue that leads in (or out) so far; they are numbered from 1.
    fn mark(&mut self, queue: Queue) -> Result<u64, String>;

    /// The last mark of the queue that all copies before it have passed; 0 for none.
    fn passed(&mut self, queue: Queue) -> Result<u64, String>;

    /// To be called again and again, also while nothing is asked for.
    fn turn(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// Waits for all that has been started. Each copy is short, and waits for no kernel.
    fn settle(&mut self);

    /// For people.
    fn name(&self) -> String;

    /// What is under way, for messages; nothing where a name says it all.
    fn state(&self) -> Option<String> {
        None
    }
}

/// Which queue; by number, a lane of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Into the GPU's memory.
    In,
    /// Out of it.
    Out,
}

/// Of a process without a GPU: there is no memory to copy to.
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
        Err("there is no GPU in this process".into())
    }

    unsafe fn take_out(&mut self, _host: u64, _device: u64, _bytes: usize, _behind_puts: bool) -> Result<(), String> {
        Err("there is no GPU in this process".into())
    }

    fn mark(&mut self, _queue: Queue) -> Result<u64, String> {
        Ok(0)
    }

    fn passed(&mut self, _queue: Queue) -> Result<u64, String> {
        Ok(0)
    }

    fn settle(&mut self) {}

    fn name(&self) -> String {
        "host memory alone".into()
    }
}
