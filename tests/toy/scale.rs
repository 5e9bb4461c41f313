//! Multiplies numbers in place.

use cuda_std::{args, kernel, thread};

/// Arguments of [`scale`].
#[args]
pub struct ScaleArgs {
    /// The numbers, in memory that the device can access.
    pub values: *mut u64,
    /// Number of values.
    pub count: u64,
    /// Factor by which each value is multiplied.
    pub factor: u64,
}

/// Multiplies each value by `factor`. Each thread processes the value at its own index, and then further values at a
/// distance of the grid size.
///
/// # Safety
/// `values` must be valid for `count` numbers while the grid runs, and no other thread may access them.
#[kernel]
pub unsafe fn scale(args: ScaleArgs) {
    let mut index = u64::from(thread::index());
    while index < args.count {
        // SAFETY: `index` is below `count`, and no other thread has this index.
        unsafe { *args.values.add(index as usize) *= args.factor };
        index += u64::from(thread::grid_dim_x() * thread::block_dim_x());
    }
}
