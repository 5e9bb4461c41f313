//! Types that may be read from memory that other parties write.

/// Types for which every bit pattern is valid, so that they can be read from the memory of a device or a peer.
///
/// # Safety
/// The type must have no invalid bit patterns and no padding.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($number:ty)*) => {$(
        // SAFETY: numbers have no padding, and every bit pattern is valid.
        unsafe impl Plain for $number {}
    )*};
}

plain! { u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 }

// SAFETY: elements of an array follow each other without padding.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
