//! In place of host/cuda where scripts/mutants.sh builds a part of the library by itself: host memory, and no GPU.

use std::alloc::{Layout, alloc_zeroed, dealloc};

/// As the library's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub enum DeviceError {
    /// As the library's.
    Refused(String),
}

/// As the library's.
#[derive(Clone, Copy, Debug)]
pub enum Choice {
    /// CPU threads.
    Emulated,
}

/// As the library's.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// Host memory.
    Host,
}

/// As the library's.
#[derive(Clone, Debug)]
pub struct Device;

impl Device {
    /// The only one.
    pub fn open(_: Choice, _: usize) -> Result<(Device, Option<String>), DeviceError> {
        Ok((Device, None))
    }

    /// Zeroed memory.
    pub fn allocate(&self, _: Place, bytes: usize) -> Result<Buffer, DeviceError> {
        let layout = Layout::from_size_align(bytes.max(1), 4096).expect("a size of a test");
        // SAFETY: the size is not 0.
        Ok(Buffer { address: unsafe { alloc_zeroed(layout) } as u64, bytes, layout })
    }
}

/// As the library's.
#[derive(Debug)]
pub struct Buffer {
    address: u64,
    bytes: usize,
    layout: Layout,
}

impl Buffer {
    /// First byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// First byte.
    pub fn pointer<T>(&self) -> *mut T {
        self.address as *mut T
    }

    /// Memory of the host.
    pub fn cuda_device(&self) -> Option<i32> {
        None
    }

    /// As the library's.
    ///
    /// # Safety
    /// Nobody else uses the memory.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn host_bytes(&self) -> Option<&mut [u8]> {
        // SAFETY: the allocation is this long and zeroed.
        Some(unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.bytes) })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.address as *mut u8, self.layout) };
    }
}

/// As the library's, which tests do without.
#[derive(Debug)]
pub struct CopyQueue;

impl CopyQueue {
    /// Nothing.
    ///
    /// # Safety
    /// None is needed.
    pub unsafe fn start(&mut self, _: u64, _: u64, _: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Nothing.
    pub fn finished(&mut self) -> Result<usize, DeviceError> {
        Ok(0)
    }
}

/// Tests free their buffers whatever happens.
pub(crate) fn keep_buffers() {}
