//! Single values: `p`, `g`, and atomic operations. Only single-thread contexts have them; a warp or block opens a
//! context of [`Thread`] in addition to its own.

use super::report::{Call, Failure};
use super::{Context, FETCHING_THREADS, HEAP, Plain, SIGNALS, Sym, Thread};
use crate::command::{Command, Opcode};
use crate::ring::Status;
use crate::ring::producer::Fence;
use cuda_std::memory::{
    Word, add_relaxed_sys_u64, compare_exchange_relaxed_sys_u64, fetch_add_relaxed_sys_u64, load_relaxed_sys_u64,
};
use cuda_std::thread;

impl Context<Thread> {
    /// Writes one value of at most 8 bytes to PE `pe`. The value is captured immediately. Its visibility at the target
    /// is established by `quiet` or a signal. OpenSHMEM: `shmem_p`.
    ///
    /// Over rails the value is inline in the command: no memory is read for it, and no fence precedes it.
    ///
    /// # Errors
    /// Returns the same errors as [`put_nbi`](Context::put_nbi). A larger value does not compile.
    #[inline(always)]
    pub fn p<T: Plain>(&mut self, to: Sym<T>, value: T, pe: u32) -> Result<(), Status> {
        const { assert!(size_of::<T>() <= 8, "p: at most 8 bytes") };
        let heap = self.begin(Call::P, pe, size_of::<T>() as u64, to.len() >= 1)?;
        if heap != 0 {
            // SAFETY: the object is in the heap, which is mapped at `heap`.
            unsafe { ((heap + to.offset()) as *mut T).write(value) };
            self.stored();
            return self.answer();
        }
        let mut bits = 0u64;
        // SAFETY: `T` has at most 8 bytes, which may have any pattern.
        unsafe { (&raw mut bits).cast::<T>().write_unaligned(value) };
        let command = Command::put_value(bits, (HEAP, to.offset()), size_of::<T>() as u64, pe);
        self.post(Call::P, &command, Fence::None)
    }

    /// Returns one value of at most 8 bytes from PE `pe`. OpenSHMEM: `shmem_g`.
    ///
    /// # Errors
    /// Returns the same errors as [`get`](Context::get), and [`Status::REFUSED`] over rails if this thread's index in
    /// the grid is [`FETCHING_THREADS`] or more.
    #[inline(always)]
    pub fn g<T: Plain>(&mut self, from: Sym<T>, pe: u32) -> Result<T, Status> {
        const { assert!(size_of::<T>() <= 8, "g: at most 8 bytes") };
        let slot = thread::index();
        let heap = self.begin(Call::G, pe, size_of::<T>() as u64, from.len() >= 1)?;
        if heap != 0 {
            // SAFETY: the object is in the heap, which is mapped at `heap`.
            return Ok(unsafe { load(heap + from.offset()) });
        }
        if slot >= FETCHING_THREADS {
            self.fail(Status::REFUSED, Failure::of(Call::G, pe, slot as u64));
            return Err(Status::REFUSED);
        }
        let landing = SIGNALS as u64 * 8 + slot as u64 * 8;
        let bytes = size_of::<T>() as u64;
        let command = super::context::transfer(Opcode::Get, landing, from.offset(), bytes, pe, 0);
        self.post(Call::G, &command, Fence::None)?;
        self.finish(Call::G, pe, bytes)?;
        // SAFETY: the word of the heap belongs to this thread, and its bytes have arrived.
        Ok(unsafe { load(self.world.heap as u64 + landing) })
    }

    /// Adds to a word of PE `pe`. The operation is not ordered. OpenSHMEM: `shmem_atomic_add`.
    ///
    /// # Errors
    /// Returns [`Status::UNSUPPORTED`] if the PE is reached over rails: the supported NICs do not perform the operation
    /// (EFA has no atomics), and ginlab does not emulate it.
    #[inline(always)]
    pub fn atomic_add(&mut self, to: Sym<u64>, add: u64, pe: u32) -> Result<(), Status> {
        add_relaxed_sys_u64(self.remote_word(to, pe)?, add);
        self.stored();
        Ok(())
    }

    /// Adds to a word of PE `pe` and returns its previous value. OpenSHMEM: `shmem_atomic_fetch_add`.
    ///
    /// # Errors
    /// Returns the same errors as [`atomic_add`](Context::atomic_add).
    #[inline(always)]
    pub fn fetch_add(&mut self, to: Sym<u64>, add: u64, pe: u32) -> Result<u64, Status> {
        Ok(fetch_add_relaxed_sys_u64(self.remote_word(to, pe)?, add))
    }

    /// Stores `new` in a word of PE `pe` if its value is `expected`. Returns the previous value. OpenSHMEM:
    /// `shmem_atomic_compare_swap`.
    ///
    /// # Errors
    /// Returns the same errors as [`atomic_add`](Context::atomic_add).
    #[inline(always)]
    pub fn compare_swap(&mut self, to: Sym<u64>, expected: u64, new: u64, pe: u32) -> Result<u64, Status> {
        Ok(compare_exchange_relaxed_sys_u64(self.remote_word(to, pe)?, expected, new))
    }

    /// Returns a word of PE `pe`. OpenSHMEM: `shmem_atomic_fetch`.
    ///
    /// # Errors
    /// Returns the same errors as [`atomic_add`](Context::atomic_add).
    #[inline(always)]
    pub fn atomic_fetch(&mut self, from: Sym<u64>, pe: u32) -> Result<u64, Status> {
        Ok(load_relaxed_sys_u64(self.remote_word(from, pe)?))
    }

    #[inline(always)]
    fn remote_word<'a>(&mut self, word: Sym<u64>, pe: u32) -> Result<&'a Word, Status> {
        match self.begin(Call::Atomic, pe, 8, word.len() >= 1)? {
            0 => {
                self.fail(Status::UNSUPPORTED, Failure::of(Call::Atomic, pe, 8));
                Err(Status::UNSUPPORTED)
            }
            // SAFETY: the object is in the heap, which stays mapped while the grid runs, and is aligned for its type.
            heap => Ok(unsafe { &*((heap + word.offset()) as *const Word) }),
        }
    }
}

/// Returns a value that any thread may write.
///
/// # Safety
/// The value must be in a heap, aligned for its type, and at most 8 bytes long, so that it is within one word.
#[inline(always)]
unsafe fn load<T: Plain>(address: u64) -> T {
    // SAFETY: the caller guarantees that the value is in a heap; heaps start and end on word boundaries.
    let word = load_relaxed_sys_u64(unsafe { &*((address & !7) as *const Word) });
    let bits = word >> (8 * (address & 7));
    // SAFETY: `Plain` types are valid for every bit pattern.
    unsafe { (&raw const bits).cast::<T>().read_unaligned() }
}
