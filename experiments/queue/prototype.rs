//! The yardstick: a ring in CUDA C++, kernel and consumer (`baseline/prototype.cu`), compiled by whoever has nvcc and run in turns
//! with ours.

use crate::error::Failure;
use libloading::Library;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::time::Duration;

/// `ginlab_prototype` of prototype.cu.
type Run = unsafe extern "C" fn(*mut *mut c_void, u32, u32, u32, u32, u64, *mut f64) -> c_int;
/// `ginlab_prototype_free` of prototype.cu.
type Free = unsafe extern "C" fn(*mut c_void);

/// The compiled yardstick.
#[derive(Debug)]
pub struct Prototype {
    run: Run,
    free: Free,
    /// The functions are there as long as this is.
    _library: Library,
}

/// One ring of the yardstick's.
#[derive(Debug)]
pub struct PrototypeRing<'a> {
    prototype: &'a Prototype,
    memory: *mut c_void,
    slots: u32,
}

// SAFETY: the library's functions do not care which thread calls them, and a ring is used by one at a time.
unsafe impl Send for PrototypeRing<'_> {}

impl Prototype {
    /// Loads the library of this path.
    ///
    /// # Errors
    /// When it does not load, or is another one.
    pub fn load(path: &Path) -> Result<Prototype, Failure> {
        let wrong = |why: String| {
            Failure::Usage(format!(
                "--prototype {}: {why}; build it by: nvcc -O3 -arch=native -std=c++17 -shared -Xcompiler -fPIC -o \
                 libprototype.so experiments/queue/baseline/prototype.cu",
                path.display()
            ))
        };
        // SAFETY: what the user names runs what it runs on loading.
        let library = unsafe { Library::new(path) }.map_err(|error| wrong(error.to_string()))?;
        // SAFETY: the types that prototype.cu gives the functions of these names.
        let functions = unsafe {
            library
                .get::<Run>("ginlab_prototype")
                .and_then(|run| Ok((*run, *library.get::<Free>("ginlab_prototype_free")?)))
        };
        let (run, free) = functions.map_err(|error| wrong(error.to_string()))?;
        Ok(Prototype { run, free, _library: library })
    }

    /// A ring with so many slots.
    pub fn ring(&self, slots: usize) -> PrototypeRing<'_> {
        PrototypeRing { prototype: self, memory: null_mut(), slots: slots as u32 }
    }
}

impl PrototypeRing<'_> {
    /// Microseconds from the launch until so many pushes of each thread are taken, by a consumer that runs on this core.
    ///
    /// # Errors
    /// What the yardstick reports.
    pub fn run(
        &mut self,
        grid: u32,
        block: u32,
        pushes: u32,
        timeout: Duration,
        core: Option<usize>,
    ) -> Result<f64, Failure> {
        // The consumer is the thread that calls; ours has a thread of its own too.
        let thread = std::thread::scope(|scope| {
            let consumer = scope.spawn(|| {
                if let Some(core) = core {
                    // Refused: as for ours, it runs where it may.
                    let _ = ginlab::cores::pin(core);
                }
                self.call(grid, block, pushes, timeout)
            });
            consumer.join()
        });
        let why = match thread {
            Ok((0, us)) => return Ok(us),
            Ok((1, _)) => "no command came for too long",
            Ok((3, _)) => "wrong commands",
            Ok(_) => "a CUDA call failed",
            Err(_) => "its thread panicked (a bug)",
        };
        Err(Failure::Run(format!("the prototype ({grid} x {block}): {why}")))
    }

    fn call(&mut self, grid: u32, block: u32, pushes: u32, timeout: Duration) -> (c_int, f64) {
        let (slots, timeout_ns, mut us) = (self.slots, timeout.as_nanos() as u64, 0.0);
        // SAFETY: the arguments are those of prototype.cu; `memory` is null or what an earlier call has left.
        let code = unsafe { (self.prototype.run)(&mut self.memory, grid, block, pushes, slots, timeout_ns, &mut us) };
        (code, us)
    }
}

impl Drop for PrototypeRing<'_> {
    fn drop(&mut self) {
        if !self.memory.is_null() {
            // SAFETY: what `run` has left; its kernels have ended.
            unsafe { (self.prototype.free)(self.memory) };
        }
    }
}
