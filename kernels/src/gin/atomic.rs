//! Single values: `p`, `g`, and the atomic operations. They are one thread's; a group opens a context of [`Thread`] beside its own.

use super::report::{Call, Failure};
use super::{Context, FETCHING_THREADS, HEAP, Plain, SIGNALS, Sym, Thread};
use crate::command::{Command, MAX_OFFSET, Opcode};
use crate::ring::Status;
use crate::ring::producer::Behind;
use cuda_std::memory::{
    Word, add_relaxed_sys_u64, compare_exchange_relaxed_sys_u64, fetch_add_relaxed_sys_u64, load_relaxed_sys_u64,
};
use cuda_std::thread;

impl Context<Thread> {
    /// Writes one value of at most 8 bytes to PE `pe`. The value is taken at once; it is visible there when `quiet` or a signal
    /// says so. OpenSHMEM: `shmem_p`.
    ///
    /// Over rails the value travels in the command: no memory is read for it, and no fence stands before it.
    ///
    /// # Errors
    /// As [`put_nbi`](Context::put_nbi); [`Status::REFUSED`] for a larger value.
    #[inline(always)]
    pub fn p<T: Plain>(&mut self, to: Sym<T>, value: T, pe: u32) -> Result<(), Status> {
        const { assert!(size_of::<T>() <= 8, "p: at most 8 bytes") };
        let heap = self.begin(Call::P, pe, size_of::<T>() as u64, to.len() >= 1)?;
        if heap != 0 {
            // SAFETY: the object is of the heap, which is mapped at `heap`.
            unsafe { ((heap + to.offset()) as *mut T).write(value) };
            self.stored();
            return self.answer();
        }
        let mut bits = 0u64;
        // SAFETY: at most 8 bytes, of any pattern.
        unsafe { (&raw mut bits).cast::<T>().write_unaligned(value) };
        let command = Command {
            opcode: Opcode::PutValue,
            source_region: 0,
            source_offset: bits & MAX_OFFSET,
            destination_region: HEAP,
            destination_offset: to.offset(),
            bytes: size_of::<T>() as u64,
            peer: pe,
            immediate: (bits >> 48) as u32,
        };
        self.post(Call::P, &command, Behind::Nothing)
    }

    /// One value of at most 8 bytes of PE `pe`. OpenSHMEM: `shmem_g`.
    ///
    /// # Errors
    /// As [`get`](Context::get); [`Status::REFUSED`] over rails in a grid of more than [`FETCHING_THREADS`] threads.
    #[inline(always)]
    pub fn g<T: Plain>(&mut self, from: Sym<T>, pe: u32) -> Result<T, Status> {
        const { assert!(size_of::<T>() <= 8, "g: at most 8 bytes") };
        let slot = thread::index();
        let heap = self.begin(Call::G, pe, size_of::<T>() as u64, from.len() >= 1)?;
        if heap != 0 {
            // SAFETY: the object is of the heap, which is mapped at `heap`.
            return Ok(unsafe { load(heap + from.offset()) });
        }
        if slot >= FETCHING_THREADS {
            self.fail(Status::REFUSED, Failure::of(Call::G, pe, slot as u64));
            return Err(Status::REFUSED);
        }
        let landing = SIGNALS as u64 * 8 + slot as u64 * 8;
        let bytes = size_of::<T>() as u64;
        let command = super::context::transfer(Opcode::Get, landing, from.offset(), bytes, pe, 0);
        self.post(Call::G, &command, Behind::Nothing)?;
        self.finish(Call::G, pe, bytes)?;
        // SAFETY: this thread's own word of the heap, into which the bytes have arrived.
        Ok(unsafe { load(self.world.heap as u64 + landing) })
    }

    /// Adds to a word of PE `pe`. Not ordered. OpenSHMEM: `shmem_atomic_add`.
    ///
    /// # Errors
    /// [`Status::UNSUPPORTED`] where the PE is reached by rails: no card that ginlab knows does it there (EFA has none), and it is not
    /// emulated in silence.
    #[inline(always)]
    pub fn atomic_add(&mut self, to: Sym<u64>, add: u64, pe: u32) -> Result<(), Status> {
        add_relaxed_sys_u64(self.remote_word(to, pe)?, add);
        self.stored();
        Ok(())
    }

    /// Adds to a word of PE `pe` and returns what it was. OpenSHMEM: `shmem_atomic_fetch_add`.
    ///
    /// # Errors
    /// As [`atomic_add`](Context::atomic_add).
    #[inline(always)]
    pub fn fetch_add(&mut self, to: Sym<u64>, add: u64, pe: u32) -> Result<u64, Status> {
        Ok(fetch_add_relaxed_sys_u64(self.remote_word(to, pe)?, add))
    }

    /// Stores `new` in a word of PE `pe` where it was `expected`; returns what it was. OpenSHMEM: `shmem_atomic_compare_swap`.
    ///
    /// # Errors
    /// As [`atomic_add`](Context::atomic_add).
    #[inline(always)]
    pub fn compare_swap(&mut self, to: Sym<u64>, expected: u64, new: u64, pe: u32) -> Result<u64, Status> {
        Ok(compare_exchange_relaxed_sys_u64(self.remote_word(to, pe)?, expected, new))
    }

    /// A word of PE `pe`. OpenSHMEM: `shmem_atomic_fetch`.
    ///
    /// # Errors
    /// As [`atomic_add`](Context::atomic_add).
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
            // SAFETY: the object is of the heap, which stays mapped while the grid runs, and is aligned for its type.
            heap => Ok(unsafe { &*((heap + word.offset()) as *const Word) }),
        }
    }
}

/// One value, as others have last written it.
///
/// # Safety
/// The value lies in a heap, and is aligned for its type, of at most 8 bytes: so it lies in one word.
#[inline(always)]
unsafe fn load<T: Plain>(address: u64) -> T {
    // SAFETY: the caller's contract; heaps begin and end on words.
    let word = load_relaxed_sys_u64(unsafe { &*((address & !7) as *const Word) });
    let bits = word >> (8 * (address & 7));
    // SAFETY: every pattern of bytes is a value of this trait.
    unsafe { (&raw const bits).cast::<T>().read_unaligned() }
}
