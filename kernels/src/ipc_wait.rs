//! The kernels of `ginlab ipc` that wait for another GPU: a barrier between GPUs, and the receiver of flags. Both waits
//! are bounded, and the host can end them early.

use crate::ring::Status;
use cuda_std::memory::{Word, load_acquire_sys_u64, store_release_sys_u64};
use cuda_std::{args, kernel, thread};

/// Arguments of [`ipc_gate`].
#[args]
pub struct GateArgs {
    /// Two addresses per other participant: its word for this GPU, and this GPU's word for it.
    pub words: *const [*const Word; 2],
    /// Number of other participants.
    pub count: u32,
    /// Number of this gate: the same for all participants, and larger than that of the previous gate.
    pub round: u64,
    /// Maximum duration of the wait, in nanoseconds.
    pub timeout_ns: u64,
    /// Word in host memory that ends the wait if it is not 0.
    pub abort: *const Word,
    /// Result: set to the [`Status`] if the kernel ends early, and otherwise unchanged.
    pub stop: *const Word,
}

/// Performs a barrier between GPUs, before work that must start at the same time: signals all other participants and
/// waits for their signals.
///
/// # Safety
/// The pointers must be valid while the grid runs, which must be one thread.
#[kernel]
pub unsafe fn ipc_gate(args: GateArgs) {
    for index in 0..args.count as usize {
        // SAFETY: the caller guarantees that there are `count` pairs of valid words.
        let theirs = unsafe { &*(*args.words.add(index))[0] };
        store_release_sys_u64(theirs, args.round);
    }
    let limit = Limit::new(args.timeout_ns, args.abort);
    for index in 0..args.count as usize {
        // SAFETY: the caller guarantees that there are `count` pairs of valid words.
        let ours = unsafe { &*(*args.words.add(index))[1] };
        // SAFETY: the caller guarantees that `abort` is valid.
        if let Err(stop) = unsafe { limit.wait(ours, args.round) } {
            // SAFETY: the caller guarantees that `stop` is valid.
            store_release_sys_u64(unsafe { &*args.stop }, stop.0);
            return;
        }
    }
}

/// Arguments of [`ipc_receive`].
#[args]
pub struct ReceiveArgs {
    /// The flag that the sender raises, initially 0.
    pub flag: *const Word,
    /// Number of times that the sender raises the flag.
    pub count: u32,
    /// Result: the time of each observation, on this device's clock.
    pub times: *mut u64,
    /// Maximum wait for one observation, in nanoseconds.
    pub timeout_ns: u64,
    /// Word in host memory that ends the wait if it is not 0.
    pub abort: *const Word,
    /// Result: set to the [`Status`] if the kernel ends early, and otherwise unchanged.
    pub stop: *const Word,
}

/// Receives flags, and records the time at which each is observed.
///
/// # Safety
/// The pointers must be valid while the grid runs, which must be one thread.
#[kernel]
pub unsafe fn ipc_receive(args: ReceiveArgs) {
    // SAFETY: the caller guarantees that `flag` is valid.
    let flag = unsafe { &*args.flag };
    for number in 0..args.count {
        let limit = Limit::new(args.timeout_ns, args.abort);
        // SAFETY: the caller guarantees that `abort` is valid.
        match unsafe { limit.wait(flag, number as u64 + 1) } {
            // SAFETY: the caller guarantees that there are `count` times, and `number` is below their number.
            Ok(()) => unsafe { args.times.add(number as usize).write(thread::global_timer_ns()) },
            Err(stop) => {
                // SAFETY: the caller guarantees that `stop` is valid.
                store_release_sys_u64(unsafe { &*args.stop }, stop.0);
                return;
            }
        }
    }
}

/// Number of polls between two checks of the clock and of the host's word, which is across PCIe.
const LOOKS: u32 = 64;

/// Bound of a wait.
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
    /// `abort` must be valid.
    unsafe fn wait(&self, word: &Word, wanted: u64) -> Result<(), Status> {
        let mut looks = 0;
        while load_acquire_sys_u64(word) < wanted {
            looks += 1;
            if looks < LOOKS {
                thread::nanosleep(20);
                continue;
            }
            looks = 0;
            // SAFETY: the caller guarantees that `abort` is valid.
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
