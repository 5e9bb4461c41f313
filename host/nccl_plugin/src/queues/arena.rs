//! Memory that NCCL's kernels read and write: what a communicator gets is given back when it has gone.
//!
//! Not before: who frees memory may have to wait for kernels, and a kernel of another context may wait for us.

use crate::cuda::{Context, checked, pinned_zeros};
use cudarc::driver::sys;

/// Small pieces of the device's memory come out of stretches of so many bytes.
const STRETCH: usize = 256 << 10;
/// Pieces begin on multiples of it.
const ALIGNED: usize = 256;

/// Where it comes from.
#[derive(Debug)]
enum From {
    Gpu(Context),
    /// For tests: the host's.
    Host,
    /// There is no GPU in this process.
    Nowhere,
}

/// A piece that is given back.
enum Piece {
    Device(u64),
    Pinned(*mut std::ffi::c_void),
    Host(Box<[u64]>),
}

/// Pinned memory of the host: where the host and where the device finds it.
#[derive(Clone, Copy, Debug)]
pub struct Pinned {
    /// For the host.
    pub host: u64,
    /// For kernels.
    pub device: u64,
}

/// See the module.
pub struct Arena {
    from: From,
    pieces: Vec<Piece>,
    /// The rest of the last stretch.
    rest: (u64, usize),
}

// SAFETY: the pieces are owned; CUDA's are freed in their context, whichever thread that is.
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
    /// In this context; in the host's memory if there is only pretended to be a GPU.
    pub fn new(context: Option<Context>, pretend: bool) -> Arena {
        let from = match context {
            _ if pretend => From::Host,
            Some(context) => From::Gpu(context),
            None => From::Nowhere,
        };
        Arena { from, pieces: Vec::new(), rest: (0, 0) }
    }

    fn host(&mut self, bytes: usize) -> u64 {
        // Room to begin on a multiple.
        let words = vec![0u64; (bytes + ALIGNED) / 8].into_boxed_slice();
        let address = (words.as_ptr() as u64).next_multiple_of(ALIGNED as u64);
        self.pieces.push(Piece::Host(words));
        address
    }

    /// Memory of the device, all zero.
    ///
    /// # Errors
    /// The driver's.
    pub fn device(&mut self, bytes: usize) -> Result<u64, String> {
        let bytes = rounded(bytes);
        if bytes <= self.rest.1 {
            let address = self.rest.0;
            self.rest = (address + bytes as u64, self.rest.1 - bytes);
            return Ok(address);
        }
        let whole = bytes.max(STRETCH);
        let address = match self.from {
            From::Nowhere => return Err("there is no GPU in this process".into()),
            From::Host => self.host(whole),
            From::Gpu(context) => {
                let mut address = 0;
                context.with(|| {
                    // SAFETY: a local to write to; the context is current.
                    checked(&format!("cuMemAlloc of {whole} B"), unsafe { sys::cuMemAlloc_v2(&mut address, whole) })
                })?;
                self.pieces.push(Piece::Device(address));
                // SAFETY: new memory of that length.
                unsafe { context.write(address, &vec![0; whole]) }?;
                address
            }
        };
        if whole - bytes > self.rest.1 {
            self.rest = (address + bytes as u64, whole - bytes);
        }
        Ok(address)
    }

    /// Pinned memory of the host, all zero, which the device reaches.
    ///
    /// # Errors
    /// The driver's.
    pub fn pinned(&mut self, bytes: usize) -> Result<Pinned, String> {
        let bytes = rounded(bytes);
        match self.from {
            From::Nowhere => Err("there is no GPU in this process".into()),
            From::Host => {
                let host = self.host(bytes);
                Ok(Pinned { host, device: host })
            }
            From::Gpu(context) => {
                let mut device = 0;
                let host = context.with(|| {
                    let host = pinned_zeros(bytes)?;
                    // SAFETY: a local to write to; the context is current.
                    let found = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut device, host, 0) };
                    checked("cuMemHostGetDevicePointer", found).map(|()| host)
                })?;
                self.pieces.push(Piece::Pinned(host));
                Ok(Pinned { host: host as u64, device })
            }
        }
    }

    /// Writes to the device's memory, now.
    ///
    /// # Safety
    /// So many bytes of this arena are there, and no kernel looks at them yet.
    ///
    /// # Errors
    /// The driver's.
    pub unsafe fn write(&self, device: u64, bytes: &[u8]) -> Result<(), String> {
        match self.from {
            // SAFETY: the caller's contract.
            From::Gpu(context) => unsafe { context.write(device, bytes) },
            // SAFETY: the caller's contract.
            From::Host => unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), device as *mut u8, bytes.len());
                Ok(())
            },
            From::Nowhere => Err("there is no GPU in this process".into()),
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let pieces = std::mem::take(&mut self.pieces);
        let free = move || {
            for piece in pieces {
                // SAFETY: allocated above, once; who used it has gone: it holds the communicator that holds this. Errors help nobody now.
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
