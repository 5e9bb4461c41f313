//! The kernels of `ginlab ipc` that wait for another GPU: a barrier between GPUs, and the receiver of flags. Both waits are bounded,
//! and the host can end them before.

use crate::ring::Status;
use cuda_std::memory::{Word, load_acquire_sys_u64, store_release_sys_u64};
use cuda_std::{args, kernel, thread};

/// Arguments of [`ipc_gate`].
#[args]
pub struct GateArgs {
    /// For each other participant two addresses: its word for us, and our word for it.
    pub words: *const [*const Word; 2],
    /// Other participants.
    pub count: u32,
    /// Number of this gate, the same for all, larger than the one before.
    pub round: u64,
    /// Longest wait.
    pub timeout_ns: u64,
    /// Host memory: not 0 ends the wait.
    pub abort: *const Word,
    /// Result: 0, or why it ended early ([`Status`]); only ever set.
    pub stop: *const Word,
}

/// A barrier between GPUs, in front of what shall begin at the same time: tells all others, and waits for their word.
///
/// # Safety
/// The pointers are valid while the grid runs, which is one thread.
#[kernel]
pub unsafe fn ipc_gate(args: GateArgs) {
    for index in 0..args.count as usize {
        // SAFETY: contract of the kernel.
        let theirs = unsafe { &*(*args.words.add(index))[0] };
        store_release_sys_u64(theirs, args.round);
    }
    let limit = Limit::new(args.timeout_ns, args.abort);
    for index in 0..args.count as usize {
        // SAFETY: contract of the kernel.
        let ours = unsafe { &*(*args.words.add(index))[1] };
        // SAFETY: contract of the kernel.
        if let Err(stop) = unsafe { limit.wait(ours, args.round) } {
            // SAFETY: contract of the kernel.
            store_release_sys_u64(unsafe { &*args.stop }, stop.0);
            return;
        }
    }
}

/// Arguments of [`ipc_receive`].
#[args]
pub struct ReceiveArgs {
    /// The flag that the sender raises, 0 before.
    pub flag: *const Word,
    /// How often.
    pub count: u32,
    /// Result: when each was seen, on this device's clock.
    pub times: *mut u64,
    /// Longest wait for one.
    pub timeout_ns: u64,
    /// Host memory: not 0 ends the wait.
    pub abort: *const Word,
    /// Result: 0, or why it ended early ([`Status`]); only ever set.
    pub stop: *const Word,
}

/// The receiver of flags: notes when it sees each.
///
/// # Safety
/// The pointers are valid while the grid runs, which is one thread.
#[kernel]
pub unsafe fn ipc_receive(args: ReceiveArgs) {
    // SAFETY: contract of the kernel.
    let flag = unsafe { &*args.flag };
    for number in 0..args.count {
        let limit = Limit::new(args.timeout_ns, args.abort);
        // SAFETY: contract of the kernel.
        match unsafe { limit.wait(flag, number as u64 + 1) } {
            // SAFETY: contract of the kernel.
            Ok(()) => unsafe { args.times.add(number as usize).write(thread::global_timer_ns()) },
            Err(stop) => {
                // SAFETY: contract of the kernel.
                store_release_sys_u64(unsafe { &*args.stop }, stop.0);
                return;
            }
        }
    }
}

/// Looks at the word that is waited for between two looks at the clock and at the host's word, which is across the bus.
const LOOKS: u32 = 64;

/// What ends a wait that nobody answers.
struct Limit {
    deadline: u64,
    abort: *const Word,
}

impl Limit {
    fn new(timeout_ns: u64, abort: *const Word) -> Limit {
        Limit { deadline: thread::global_timer_ns() + timeout_ns, abort }
    }

    /// Waits until the word is at least `wanted`, and acquires it.
    ///
    /// # Safety
    /// `abort` is valid.
    unsafe fn wait(&self, word: &Word, wanted: u64) -> Result<(), Status> {
        let mut looks = 0;
        while load_acquire_sys_u64(word) < wanted {
            looks += 1;
            if looks < LOOKS {
                thread::nanosleep(20);
                continue;
            }
            looks = 0;
            // SAFETY: the caller's contract.
            if load_acquire_sys_u64(unsafe { &*self.abort }) != 0 {
                return Err(Status::STOPPED);
            }
            if thread::global_timer_ns() > self.deadline {
                return Err(Status::DEADLINE);
            }
        }
        Ok(())
    }
}
