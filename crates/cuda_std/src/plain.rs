//! Values that may be read from memory that others write.

/// Values for which every bit pattern is good, so that they can be read from a device's or a peer's memory.
///
/// # Safety
/// The type has no invalid bit patterns and no padding.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($number:ty)*) => {$(
        // SAFETY: a number: no padding, and each pattern is a value.
        unsafe impl Plain for $number {}
    )*};
}

plain! { u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 }

// SAFETY: elements of an array follow each other without padding.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
