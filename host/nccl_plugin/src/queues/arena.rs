//! Memory that NCCL's kernels read and write. All allocations of a communicator are freed together when it is dropped.
//!
//! They are not freed earlier: freeing memory may wait for kernels, and a kernel of another context may be waiting for
//! this plugin.

use crate::cuda::{CuContext, checked, pinned_zeros};
use cudarc::driver::sys;

/// Size of the chunks from which small pieces of device memory are allocated.
const STRETCH: usize = 256 << 10;
/// Alignment of pieces, in bytes.
const ALIGNED: usize = 256;

/// Source of the memory.
#[derive(Debug)]
enum From {
    Gpu(CuContext),
    /// Host memory, for tests.
    Host,
    /// No memory: there is no GPU in this process.
    Nowhere,
}

/// An allocation to free.
enum Piece {
    Device(u64),
    Pinned(*mut std::ffi::c_void),
    Host(Box<[u64]>),
}

/// Pinned host memory, with its addresses on the host and on the device.
#[derive(Clone, Copy, Debug)]
pub struct Pinned {
    /// Address on the host.
    pub host: u64,
    /// Address for kernels.
    pub device: u64,
}

/// Allocator of a communicator's memory; the module documentation describes it.
pub struct Arena {
    from: From,
    pieces: Vec<Piece>,
    /// Address and length of the unused end of the last chunk.
    rest: (u64, usize),
}

// SAFETY: the pieces are owned, and CUDA's are freed in their own context, on any thread.
unsafe impl Send for Arena {}

impl std::fmt::Debug for Arena {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Arena({:?}, {} pieces)", self.from, self.pieces.len())
    }
}

fn rounded(bytes: usize) -> usize {
    bytes.max(1).next_multiple_of(ALIGNED)
}

impl Arena {
    /// Creates an arena of GPU memory in `context`. With `pretend` it allocates host memory instead.
    pub fn new(context: Option<CuContext>, pretend: bool) -> Arena {
        let from = match context {
            _ if pretend => From::Host,
            Some(context) => From::Gpu(context),
            None => From::Nowhere,
        };
        Arena { from, pieces: Vec::new(), rest: (0, 0) }
    }

    fn host(&mut self, bytes: usize) -> u64 {
        // With space for the alignment.
        let words = vec![0u64; (bytes + ALIGNED) / 8].into_boxed_slice();
        let address = (words.as_ptr() as u64).next_multiple_of(ALIGNED as u64);
        self.pieces.push(Piece::Host(words));
        address
    }

    /// Allocates device memory, all zero.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub fn device(&mut self, bytes: usize) -> Result<u64, String> {
        let bytes = rounded(bytes);
        if bytes <= self.rest.1 {
            let address = self.rest.0;
            self.rest = (address + bytes as u64, self.rest.1 - bytes);
            return Ok(address);
        }
        let whole = bytes.max(STRETCH);
        let address = match self.from {
            From::Nowhere => return Err("no GPU in this process".into()),
            From::Host => self.host(whole),
            From::Gpu(context) => {
                let mut address = 0;
                context.with(|| {
                    // SAFETY: `address` is a local variable to write to, and the context is current.
                    checked(&format!("cuMemAlloc of {whole} B"), unsafe { sys::cuMemAlloc_v2(&mut address, whole) })
                })?;
                self.pieces.push(Piece::Device(address));
                // SAFETY: new memory of that length, which no kernel uses yet.
                unsafe { context.write(address, &vec![0; whole]) }?;
                address
            }
        };
        if whole - bytes > self.rest.1 {
            self.rest = (address + bytes as u64, whole - bytes);
        }
        Ok(address)
    }

    /// Allocates pinned host memory, all zero, that the device can access.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub fn pinned(&mut self, bytes: usize) -> Result<Pinned, String> {
        let bytes = rounded(bytes);
        match self.from {
            From::Nowhere => Err("no GPU in this process".into()),
            From::Host => {
                let host = self.host(bytes);
                Ok(Pinned { host, device: host })
            }
            From::Gpu(context) => {
                let mut device = 0;
                let host = context.with(|| {
                    let host = pinned_zeros(bytes)?;
                    self.pieces.push(Piece::Pinned(host));
                    // SAFETY: `device` is a local variable to write to, and the context is current.
                    let found = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut device, host, 0) };
                    checked("cuMemHostGetDevicePointer", found).map(|()| host)
                })?;
                Ok(Pinned { host: host as u64, device })
            }
        }
    }

    /// Writes to device memory immediately.
    ///
    /// # Safety
    /// The range must be in memory of this arena, and no kernel may access it yet.
    ///
    /// # Errors
    /// Returns the driver's error.
    pub unsafe fn write(&self, device: u64, bytes: &[u8]) -> Result<(), String> {
        match self.from {
            // SAFETY: the caller guarantees that the range is valid, and that no kernel accesses it.
            From::Gpu(context) => unsafe { context.write(device, bytes) },
            // SAFETY: the caller guarantees that the range is valid; with `From::Host` it is host memory.
            From::Host => unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), device as *mut u8, bytes.len());
                Ok(())
            },
            From::Nowhere => Err("no GPU in this process".into()),
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let pieces = std::mem::take(&mut self.pieces);
        let free = move || {
            for piece in pieces {
                // SAFETY: the memory was allocated above, and is freed once. It has no users any longer, since they
                // hold the communicator that owns this arena. Errors cannot be handled here.
                unsafe {
                    match piece {
                        Piece::Device(address) => drop(sys::cuMemFree_v2(address)),
                        Piece::Pinned(host) => drop(sys::cuMemFreeHost(host)),
                        Piece::Host(words) => drop(words),
                    }
                }
            }
            Ok(())
        };
        let _ = match self.from {
            From::Gpu(context) => context.with(free),
            From::Host | From::Nowhere => free(),
        };
    }
}
