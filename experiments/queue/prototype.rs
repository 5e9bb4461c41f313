//! Reference implementation: a ring in CUDA C++, with kernel and consumer (`baseline/prototype.cu`). Users who have
//! nvcc compile it. Its runs alternate with those of ginlab's ring.

use crate::error::Failure;
use libloading::Library;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::time::Duration;

/// Type of `ginlab_prototype` in prototype.cu.
type Run = unsafe extern "C" fn(*mut *mut c_void, u32, u32, u32, u32, u64, *mut f64) -> c_int;
/// Type of `ginlab_prototype_free` in prototype.cu.
type Free = unsafe extern "C" fn(*mut c_void);

/// The loaded reference implementation.
#[derive(Debug)]
pub struct Prototype {
    run: Run,
    free: Free,
    /// Keeps the functions loaded.
    _library: Library,
}

/// A ring of the reference implementation.
#[derive(Debug)]
pub struct PrototypeRing<'a> {
    prototype: &'a Prototype,
    memory: *mut c_void,
    slots: u32,
}

// SAFETY: the library's functions can be called from any thread, and a ring is used by one thread at a time.
unsafe impl Send for PrototypeRing<'_> {}

impl Prototype {
    /// Loads the library at this path.
    ///
    /// # Errors
    /// Returns [`Failure::Usage`] if it cannot be loaded, or lacks the functions.
    pub fn load(path: &Path) -> Result<Prototype, Failure> {
        let wrong = |why: String| {
            Failure::Usage(format!(
                "--prototype {}: {why}; build it with: nvcc -O3 -arch=native -std=c++17 -shared -Xcompiler -fPIC -o \
                 libprototype.so experiments/queue/baseline/prototype.cu",
                path.display()
            ))
        };
        // SAFETY: the user is responsible for the code that the named library runs on loading.
        let library = unsafe { Library::new(path) }.map_err(|error| wrong(error.to_string()))?;
        // SAFETY: the types are those of the functions of these names in prototype.cu.
        let functions = unsafe {
            library
                .get::<Run>("ginlab_prototype")
                .and_then(|run| Ok((*run, *library.get::<Free>("ginlab_prototype_free")?)))
        };
        let (run, free) = functions.map_err(|error| wrong(error.to_string()))?;
        Ok(Prototype { run, free, _library: library })
    }

    /// Creates a ring with `slots` slots.
    pub fn ring(&self, slots: usize) -> PrototypeRing<'_> {
        PrototypeRing { prototype: self, memory: null_mut(), slots: slots as u32 }
    }
}

impl PrototypeRing<'_> {
    /// Returns the microseconds from the launch until `pushes` commands of each thread are consumed, by a consumer that
    /// runs on `core`.
    ///
    /// # Errors
    /// Returns the failure that the library reports.
    pub fn run(
        &mut self,
        grid: u32,
        block: u32,
        pushes: u32,
        timeout: Duration,
        core: Option<usize>,
    ) -> Result<f64, Failure> {
        // The calling thread is the consumer. Use a separate thread, as for ginlab's ring.
        let thread = std::thread::scope(|scope| {
            let consumer = scope.spawn(|| {
                if let Some(core) = core {
                    // If pinning is rejected, the thread runs unpinned, as for ginlab's ring.
                    let _ = ginlab::cores::pin(core);
                }
                self.call(grid, block, pushes, timeout)
            });
            consumer.join()
        });
        let why = match thread {
            Ok((0, us)) => return Ok(us),
            Ok((1, _)) => "timed out waiting for a command",
            Ok((3, _)) => "wrong commands",
            Ok(_) => "a CUDA call failed",
            Err(_) => "its thread panicked (a bug)",
        };
        Err(Failure::Run(format!("the prototype ({grid} x {block}): {why}")))
    }

    fn call(&mut self, grid: u32, block: u32, pushes: u32, timeout: Duration) -> (c_int, f64) {
        let (slots, timeout_ns, mut us) = (self.slots, timeout.as_nanos() as u64, 0.0);
        // SAFETY: the arguments are those of prototype.cu. `memory` is null or was set by an earlier call.
        let code = unsafe { (self.prototype.run)(&mut self.memory, grid, block, pushes, slots, timeout_ns, &mut us) };
        (code, us)
    }
}

impl Drop for PrototypeRing<'_> {
    fn drop(&mut self) {
        if !self.memory.is_null() {
            // SAFETY: `run` has set the memory, and its kernels have ended.
            unsafe { (self.prototype.free)(self.memory) };
        }
    }
}
