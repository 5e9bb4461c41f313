//! A list that the threads of a grid append to.

use crate::memory::{Word, fetch_add_relaxed_gpu_u64, load_relaxed_gpu_u64};
use crate::thread::every;

/// Numbers in the order in which threads happened to append them. Plain data: the host allocates the memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AppendList {
    /// Number of elements.
    pub count: *const Word,
    /// The elements.
    pub numbers: *mut u32,
}

impl AppendList {
    /// Appends a number.
    ///
    /// # Safety
    /// The memory must have space for it, and no thread may read the list concurrently.
    #[inline(always)]
    pub unsafe fn push(&self, number: u32) {
        // SAFETY: the caller guarantees space for one more number, and the atomic add gives each thread a distinct
        // index.
        unsafe { self.numbers.add(fetch_add_relaxed_gpu_u64(&*self.count, 1) as usize).write(number) };
    }

    /// Returns every `step`-th number, starting at index `first`. `part` is `(first, step)`. A grid barrier must
    /// separate this call from all preceding appends.
    ///
    /// # Safety
    /// No thread may append concurrently.
    #[inline(always)]
    pub unsafe fn every(&self, part: (u32, u32)) -> impl Iterator<Item = u32> + use<> {
        // SAFETY: the caller guarantees that no thread appends, and `count` is valid like `numbers`.
        let (numbers, count) = unsafe { (self.numbers, load_relaxed_gpu_u64(&*self.count)) };
        // SAFETY: `at` is below the count, so the element has been written.
        every(part, count as u32).map(move |at| unsafe { numbers.add(at as usize).read() })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{emulation, thread};

    #[test]
    fn every_appended_element_is_stored_once() {
        let (count, mut numbers) = (Word::new(0), [u32::MAX; 96]);
        let list = AppendList { count: &count, numbers: numbers.as_mut_ptr() };
        let address = (list.count as usize, list.numbers as usize);
        emulation::run(3, 32, || {
            let list = AppendList { count: address.0 as *const Word, numbers: address.1 as *mut u32 };
            // SAFETY: the array has space for one number per thread.
            unsafe { list.push(thread::index()) };
        })
        .expect("all append");
        // SAFETY: the grid has ended.
        let mut all: Vec<u32> = (0..5).flat_map(|first| unsafe { list.every((first, 5)) }).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..96));
    }
}
