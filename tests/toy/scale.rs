//! Multiplies numbers in place.

use cuda_std::{args, kernel, thread};

/// Arguments of [`scale`].
#[args]
pub struct ScaleArgs {
    /// The numbers, in memory that the device reaches.
    pub values: *mut u64,
    /// How many there are.
    pub count: u64,
    /// What each is multiplied by.
    pub factor: u64,
}

/// Each thread takes the number of its own index, then the one a whole grid further, and so on.
///
/// # Safety
/// `values` is valid for `count` numbers while the grid runs, and nobody else uses them.
#[kernel]
pub unsafe fn scale(args: ScaleArgs) {
    let mut index = u64::from(thread::index());
    while index < args.count {
        // SAFETY: below `count`, and each index is one thread's.
        unsafe { *args.values.add(index as usize) *= args.factor };
        index += u64::from(thread::grid_dim_x() * thread::block_dim_x());
    }
}
