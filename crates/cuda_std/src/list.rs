//! A list that a grid's threads append to.

use crate::memory::{Word, fetch_add_relaxed_gpu_u64, load_relaxed_gpu_u64};
use crate::thread::every;

/// Numbers in the order in which threads have happened to append them. Plain data: the host makes the memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct List {
    /// How many there are.
    pub count: *const Word,
    /// They.
    pub numbers: *mut u32,
}

impl List {
    /// Appends a number.
    ///
    /// # Safety
    /// There is room for it, and nobody reads meanwhile.
    #[inline(always)]
    pub unsafe fn push(&self, number: u32) {
        // SAFETY: the caller's contract; each thread has a place of its own.
        unsafe { self.numbers.add(fetch_add_relaxed_gpu_u64(&*self.count, 1) as usize).write(number) };
    }

    /// Of the numbers every `step`-th, from the `first` on. A barrier of the grid stands between this and all that was appended.
    ///
    /// # Safety
    /// Nobody appends meanwhile.
    #[inline(always)]
    pub unsafe fn every(&self, part: (u32, u32)) -> impl Iterator<Item = u32> + use<> {
        // SAFETY: the caller's contract.
        let (numbers, count) = unsafe { (self.numbers, load_relaxed_gpu_u64(&*self.count)) };
        // SAFETY: below the count.
        every(part, count as u32).map(move |at| unsafe { numbers.add(at as usize).read() })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{emulation, thread};

    #[test]
    fn what_all_threads_append_is_there_once_each() {
        let (count, mut numbers) = (Word::new(0), [u32::MAX; 96]);
        let list = List { count: &count, numbers: numbers.as_mut_ptr() };
        let address = (list.count as usize, list.numbers as usize);
        emulation::run(3, 32, || {
            let list = List { count: address.0 as *const Word, numbers: address.1 as *mut u32 };
            // SAFETY: a number for each thread.
            unsafe { list.push(thread::index()) };
        })
        .expect("all append");
        // SAFETY: the grid has ended.
        let mut all: Vec<u32> = (0..5).flat_map(|first| unsafe { list.every((first, 5)) }).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..96));
    }
}
